//! The chart in a terminal: bars for each series, one below the other on the same axes.

use super::axis::{Scale, label};
use super::{Band, Chart, Level, Series};

/// The size and colours of a chart in the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChartLook {
    /// The width in columns; fewer than 40 are taken as 40.
    pub width: usize,
    /// The height in lines of all bars; each series has at least 3.
    pub height: usize,
    /// True if colours may be used (a terminal, and no `NO_COLOR`).
    pub colour: bool,
}

/// Draws the chart as text.
pub(super) fn draw(chart: &Chart, look: ChartLook) -> String {
    let rows = (look.height / chart.series.len().max(1)).max(3);
    let x = Scale::to(chart.width(), 10);
    let y = chart.upright(5);
    let numbers = [y.ticks.last(), y.ticks.first()].map(|tick| tick.map(|tick| label(*tick)).unwrap_or_default());
    let gutter = numbers.iter().map(String::len).max().unwrap_or_default();
    let width = look.width.max(40) - gutter - 2;
    let plot = Plot { look, x, y, numbers, gutter, width, rows };
    let title: String = chart.title.chars().take(look.width).collect();
    let mut lines = vec![if title == chart.title { look.paint(BOLD, &title) } else { title }, chart.y.name.clone()];
    for (index, series) in chart.series.iter().enumerate() {
        lines.extend(plot.bars(series, COLOURS[index % COLOURS.len()], &chart.levels));
    }
    lines.push(plot.ruler());
    lines.push(plot.numbers());
    lines.extend(chart.bands.iter().map(|band| plot.band(band)));
    lines.push(format!("{:>1$}", chart.x.name, gutter + 2 + width));
    lines.extend(chart.levels.iter().map(|level| format!("╌╌ {}", level.name)));
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The axes, and the size of the bars of a series.
struct Plot {
    look: ChartLook,
    x: Scale,
    y: Scale,
    /// The labels at the two ends of the vertical axis, the higher first.
    numbers: [String; 2],
    /// The width of the labels of the vertical axis.
    gutter: usize,
    width: usize,
    rows: usize,
}

// === impl Plot ===

impl Plot {
    /// Draws the bars of a series below its name.
    fn bars(&self, series: &Series, colour: &str, levels: &[Level]) -> Vec<String> {
        let heights: Vec<usize> = (0..self.width).map(|column| self.height(series, column)).collect();
        let rows = (0..self.rows).rev().map(|row| {
            let is_level = levels.iter().any(|level| place(self.y.fraction(level.y), self.rows) == row);
            let cell = |height: &usize| match BARS[height.saturating_sub(row * 8).min(8)] {
                ' ' if is_level => '╌',
                bar => bar,
            };
            let number = match row {
                0 => &*self.numbers[1],
                row if row + 1 == self.rows => &*self.numbers[0],
                _ => "",
            };
            let edge = if number.is_empty() { '│' } else { '┤' };
            let cells: String = heights.iter().map(cell).collect();
            let cells = self.look.paint(colour, cells.trim_end());
            format!("{number:>gutter$} {edge}{cells}", gutter = self.gutter)
        });
        [self.look.paint(colour, &series.name)].into_iter().chain(rows).collect()
    }

    /// Returns the height of a series in a column, in eighths of a row.
    fn height(&self, series: &Series, column: usize) -> usize {
        let [from, to] = [column, column + 1].map(|column| self.x.end * float(column) / float(self.width));
        let inside = series.points.iter().filter(|point| from <= point.0 && point.0 < to).map(|point| point.1);
        let height = inside.reduce(f64::max).or_else(|| series.at(f64::midpoint(from, to)));
        height.map_or(0, |height| place(self.y.fraction(height), self.rows * 8 + 1).max(usize::from(height > 0.0)))
    }

    /// Draws the horizontal axis.
    fn ruler(&self) -> String {
        let mut line = vec!['─'; self.width];
        for tick in &self.x.ticks {
            line[place(self.x.fraction(*tick), self.width)] = '┬';
        }
        format!("{:gutter$} └{}", "", line.into_iter().collect::<String>(), gutter = self.gutter)
    }

    /// Writes the labels of the horizontal axis.
    fn numbers(&self) -> String {
        let mut line = vec![' '; self.width];
        for tick in &self.x.ticks {
            let text = label(*tick);
            let middle = place(self.x.fraction(*tick), self.width);
            let start = middle.saturating_sub(text.len() / 2).min(self.width.saturating_sub(text.len()));
            line.iter_mut().skip(start).zip(text.chars()).for_each(|(place, c)| *place = c);
        }
        format!("{:gutter$}  {}", "", line.into_iter().collect::<String>(), gutter = self.gutter)
    }

    /// Draws a band under the axis.
    fn band(&self, band: &Band) -> String {
        let [from, to] = [band.from, band.to].map(|x| place(self.x.fraction(x), self.width));
        let room = to.saturating_sub(from) + 1;
        let name = format!(" {} ", band.name);
        let text = if name.chars().count() + 2 <= room {
            format!("└{name:─^0$}┘", room - 2)
        } else {
            format!("└{}┘{name}", "─".repeat(room.saturating_sub(2)))
        };
        format!("{:gutter$}  {:from$}{text}", "", "", gutter = self.gutter)
    }
}

// === impl ChartLook ===

/// The colour of each series: orange, blue, green, purple, brown, as in the SVG.
const COLOURS: [&str; 5] = ["\x1b[38;5;208m", "\x1b[38;5;39m", "\x1b[38;5;35m", "\x1b[38;5;175m", "\x1b[38;5;136m"];
/// The characters for bars of growing height, the last of them full.
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

impl ChartLook {
    fn paint(self, style: &str, text: &str) -> String {
        if self.colour { format!("{style}{text}{PLAIN}") } else { text.to_owned() }
    }
}

/// Returns which of `count` places a fraction of the axis falls into.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and not negative")]
fn place(fraction: f64, count: usize) -> usize {
    ((fraction.clamp(0.0, 1.0) * float(count - 1)).round() as usize).min(count - 1)
}

#[expect(clippy::cast_precision_loss, reason = "a terminal is far narrower than 2^52")]
fn float(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::ChartLook;

    #[test]
    fn it_fits_the_width_it_was_given() {
        for width in [40, 60, 80, 132] {
            let text = sample().terminal(ChartLook { width, height: 12, colour: false });
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(width), "{widest:?} in {width}\n{text}");
        }
    }

    #[test]
    fn each_series_has_its_bars_and_each_level_its_line() {
        let text = sample().terminal(ChartLook { width: 80, height: 12, colour: false });
        assert!(!text.contains('\x1b'));
        for word in ["without <gate>", "with gate", "webhook down", "1,500", "╌╌ what the API can serve"] {
            assert!(text.contains(word), "no {word} in\n{text}");
        }
        let bars = |name: &str| text.split(name).nth(1).expect("its name").lines().skip(1).take(6).collect::<Vec<_>>();
        let full = |name: &str| bars(name).iter().map(|line| line.matches('█').count()).collect::<Vec<_>>();
        assert!(full("without <gate>")[1] > 15 && full("without <gate>")[5] > 15, "{text}");
        assert_eq!(full("with gate")[..4], [0, 0, 0, 0], "{text}");
        assert!(full("with gate")[5] > 60 && text.lines().any(|line| line.matches('╌').count() > 40), "{text}");
    }

    #[test]
    fn colour_is_only_added() {
        let look = ChartLook { width: 80, height: 12, colour: true };
        let coloured = sample().terminal(look);
        let plain = sample().terminal(ChartLook { colour: false, ..look });
        let mut stripped = String::new();
        let mut rest = coloured.as_str();
        while let Some((before, after)) = rest.split_once('\x1b') {
            stripped.push_str(before);
            rest = after.split_once('m').expect("an escape ends with m").1;
        }
        stripped.push_str(rest);
        let trimmed = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
        assert_eq!(trimmed(&stripped), trimmed(&plain));
        assert!(coloured.contains('\x1b'));
    }
}
