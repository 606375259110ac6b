//! Charts of numbers over time: a few series on one pair of axes, as SVG.
//!
//! It is written by hand, because a plotting library would bring a font stack into a sidecar. The
//! SVG has no scripts and no fonts, and follows print and dark mode.

mod axis;
mod figures;
mod svg;

use self::axis::Scale;
pub use self::figures::{short, thousands};

/// A chart of numbers over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// The title of the chart.
    pub title: String,
    /// A line below the title: what was measured, and how.
    pub note: String,
    /// The horizontal axis. It begins at zero.
    pub x: Axis,
    /// The vertical axis. It begins at zero or, with tenfold steps, at a power of ten.
    pub y: Axis,
    /// Whether the vertical axis has even or tenfold steps.
    pub steps: Steps,
    /// The series, in the order of drawing.
    pub series: Vec<Series>,
    /// Labelled parts of the horizontal axis, such as a time of failures.
    pub bands: Vec<Band>,
    /// Labelled heights for comparison, such as a limit.
    pub levels: Vec<Level>,
}

/// An axis of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// The quantity on the axis, with the unit.
    pub name: String,
    /// A value inside the axis: its end is at least this and, with tenfold steps, its start at most
    /// this.
    pub at_least: f64,
}

/// The kind of steps on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// Each step adds the same amount.
    Even,
    /// Each step multiplies by ten. Values of zero are not drawn.
    Tenfold,
}

/// A series of numbers in a chart, drawn as a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The mark to draw the series with.
    pub mark: Mark,
    /// The points from left to right: time and value. Infinite or undefined numbers are not drawn.
    pub points: Vec<(f64, f64)>,
}

/// How a series is drawn. The two ways can be told apart without colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A thin line, and everything below it shaded.
    Area,
    /// A thick line.
    Line,
}

/// A labelled part of the horizontal axis, such as a time of failures.
#[derive(Clone, Debug, PartialEq)]
pub struct Band {
    /// The label of this time, for example "answers 503".
    pub name: String,
    /// The start of the part, in units of the horizontal axis.
    pub from: f64,
    /// The end of the part, in units of the horizontal axis.
    pub to: f64,
}

/// A labelled height for comparison, drawn as a dashed line.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// The label of the height, for example the name of a limit.
    pub name: String,
    /// The height, in units of the vertical axis.
    pub y: f64,
}

// === impl Chart ===

impl Chart {
    /// Creates a chart over `length` seconds, without series.
    pub fn over_time(title: &str, note: String, length: f64, y: Axis) -> Self {
        let x = Axis { name: "seconds".to_owned(), at_least: length };
        let series = Vec::new();
        let bands = Vec::new();
        let levels = Vec::new();
        Self { title: title.to_owned(), note, x, y, steps: Steps::Even, series, bands, levels }
    }

    /// Draws the chart as a complete SVG file.
    pub fn svg(&self) -> String {
        svg::draw(&self.without_gaps())
    }

    /// Returns a copy without numbers that cannot be drawn.
    fn without_gaps(&self) -> Self {
        let mut chart = self.clone();
        let is_drawn = |y: f64| y.is_finite() && (self.steps == Steps::Even || y > 0.0);
        for series in &mut chart.series {
            series.points.retain(|(x, y)| x.is_finite() && is_drawn(*y));
        }
        chart.bands.retain(|band| band.from.is_finite() && band.to.is_finite() && band.from < band.to);
        chart.levels.retain(|level| is_drawn(level.y));
        chart
    }

    /// Returns the vertical axis as it is drawn, with about `wanted` ticks.
    fn upright(&self, wanted: u32) -> Scale {
        match self.steps {
            Steps::Even => Scale::past(self.height(), wanted),
            Steps::Tenfold => {
                let named = Some(self.y.at_least).filter(|least| *least > 0.0);
                let lowest = self.heights().chain(named).fold(self.height(), f64::min);
                Scale::tenfold(lowest, self.height())
            }
        }
    }

    /// Returns the entries of the legend: each series with its index and mark, then each level.
    fn legend(&self) -> impl Iterator<Item = (Option<(usize, Mark)>, &str)> {
        let series = self.series.iter().enumerate().map(|(index, it)| (Some((index, it.mark)), it.name.as_str()));
        series.chain(self.levels.iter().map(|level| (None, level.name.as_str())))
    }

    /// Returns the largest value on the horizontal axis.
    fn width(&self) -> f64 {
        let points = self.series.iter().flat_map(|series| series.points.iter().map(|point| point.0));
        points.chain(self.bands.iter().map(|band| band.to)).fold(self.x.at_least, f64::max)
    }

    /// Returns the largest value on the vertical axis.
    fn height(&self) -> f64 {
        self.heights().fold(self.y.at_least, f64::max)
    }

    fn heights(&self) -> impl Iterator<Item = f64> {
        let points = self.series.iter().flat_map(|series| series.points.iter().map(|point| point.1));
        points.chain(self.levels.iter().map(|level| level.y))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn sample() -> Chart {
        let wave = |at: f64| if (3.0..9.0).contains(&at) { 1500.0 } else { 200.0 };
        Chart {
            title: "Calls that reached the API".to_owned(),
            note: "counted by the API itself".to_owned(),
            x: Axis { name: "seconds".to_owned(), at_least: 1.0 },
            y: Axis { name: "calls per second".to_owned(), at_least: 1.0 },
            steps: Steps::Even,
            series: vec![
                Series {
                    name: "without <gate>".to_owned(),
                    mark: Mark::Area,
                    points: (0..=80).map(|i| f64::from(i) / 4.0).map(|x| (x, wave(x))).collect(),
                },
                Series {
                    name: "with gate".to_owned(),
                    mark: Mark::Line,
                    points: (0..=80).map(|i| (f64::from(i) / 4.0, 300.0)).collect(),
                },
            ],
            bands: vec![Band { name: "webhook down".to_owned(), from: 3.0, to: 9.0 }],
            levels: vec![Level { name: "what the API can serve".to_owned(), y: 500.0 }],
        }
    }

    #[test]
    fn numbers_that_cannot_be_drawn_are_left_out() {
        let mut chart = sample();
        chart.series[0].points = vec![(0.0, f64::NAN), (1.0, f64::INFINITY), (2.0, 7.0)];
        chart.levels[0].y = f64::NAN;
        assert!(!chart.svg().contains("NaN"));
        assert!(!chart.svg().contains("inf"));
    }

    #[test]
    fn where_each_step_is_tenfold_ticks_are_powers_of_ten_and_zero_is_not_drawn() {
        let mut chart = sample();
        chart.steps = Steps::Tenfold;
        chart.series[0].points = vec![(0.0, 0.0), (1.0, 0.004), (2.0, 70_000.0)];
        let svg = chart.svg();
        for tick in [">0.001<", ">0.1<", ">1<", ">1,000<", ">100,000<"] {
            assert!(svg.contains(tick), "no {tick} in {svg}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        chart.series.clear();
        chart.levels.clear();
        assert!(chart.svg().ends_with("</svg>\n"));
    }

    #[test]
    fn a_chart_without_data_is_still_a_chart() {
        let mut chart = sample();
        chart.series.iter_mut().for_each(|series| series.points.clear());
        chart.bands.clear();
        chart.levels.clear();
        assert!(chart.svg().ends_with("</svg>\n"));
    }
}
