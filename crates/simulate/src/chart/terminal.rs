//! The chart in a terminal: braille dots for areas, half blocks for lines, so that they differ
//! without colour.

use std::ops::RangeInclusive;

use super::axis::{Scale, label};
use super::{Band, Chart, Mark, Series};

/// The size and colours of a chart in the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The columns that may be used; fewer than 40 are taken as 40.
    pub width: usize,
    /// The lines of the plot itself; fewer than 4 are taken as 4.
    pub height: usize,
    /// True if colours may be used (a terminal, and no `NO_COLOR`).
    pub colour: bool,
}

/// Draws plot, legend and axes as text.
pub(super) fn draw(chart: &Chart, look: Look) -> String {
    let height = look.height.max(4);
    let x = Scale::to(chart.width(), 10);
    let y = chart.upright(if height >= 10 { 5 } else { 3 });
    let gutter = y.ticks.iter().map(|tick| label(*tick).chars().count()).max().unwrap_or(1);
    let width = look.width.max(40) - gutter - 2;
    let cells = vec![Cell { dots: 0, over: None, owner: None }; width * height];
    let mut plot = Plot { look, x, y, gutter, width, height, cells };
    for level in &chart.levels {
        plot.level(level.y);
    }
    for (index, series) in chart.series.iter().enumerate() {
        match series.mark {
            Mark::Area => plot.area(series, index),
            Mark::Line => plot.line(series, index, marker(chart, index)),
        }
    }
    let title: String = chart.title.chars().take(look.width).collect();
    let mut lines = vec![if title == chart.title { look.paint(BOLD, &title) } else { title }];
    lines.extend(legend(chart, look));
    lines.push(chart.y.name.clone());
    lines.extend(plot.rows());
    lines.push(plot.ruler());
    lines.push(plot.numbers());
    lines.extend(chart.bands.iter().map(|band| plot.band(band)));
    lines.push(format!("{:>1$}", chart.x.name, gutter + 2 + width));
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The plot in the making.
struct Plot {
    look: Look,
    x: Scale,
    y: Scale,
    /// The columns to the left for the numbers.
    gutter: usize,
    width: usize,
    height: usize,
    cells: Vec<Cell>,
}

/// One character of the plot.
#[derive(Clone, Copy)]
struct Cell {
    /// Braille dots, as Unicode numbers them.
    dots: u8,
    /// A half block, dash or marker drawn over them.
    over: Option<char>,
    /// The series that gives it its colour.
    owner: Option<usize>,
}

/// Dots of one braille cell, by row and column.
const DOTS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

// === impl Plot ===

impl Plot {
    /// Returns the cell of a column, so many rows above the axis.
    fn cell(&mut self, column: usize, up: usize) -> &mut Cell {
        &mut self.cells[(self.height - 1 - up) * self.width + column]
    }

    fn level(&mut self, y: f64) {
        let up = place(self.y.fraction(y), self.height);
        (0..self.width).for_each(|column| self.cell(column, up).over = Some('╌'));
    }

    /// Draws a line of dots with every second dot below it.
    fn area(&mut self, series: &Series, owner: usize) {
        for (column, before, top) in self.heights(series, self.width * 2, self.height * 4) {
            for up in (0..=top).filter(|up| *up >= before.min(top) || (up + column) % 2 == 0) {
                let cell = self.cell(column / 2, up / 4);
                *cell = Cell { dots: cell.dots | DOTS[3 - up % 4][column % 2], over: None, owner: Some(owner) };
            }
        }
    }

    /// Draws half blocks, or a marker in each column; joined where the line jumps.
    fn line(&mut self, series: &Series, owner: usize, marker: Option<char>) {
        let steps = if marker.is_some() { 1 } else { 2 };
        for (column, before, at) in self.heights(series, self.width, self.height * steps) {
            for up in jump(before, at) {
                let mark = marker.unwrap_or(if up % 2 == 0 { '▄' } else { '▀' });
                let cell = self.cell(column, up / steps);
                let is_both = cell.owner == Some(owner) && cell.over.is_some_and(|other| other != mark);
                *cell = Cell { dots: 0, over: Some(if is_both { '█' } else { mark }), owner: Some(owner) };
            }
        }
    }

    /// Returns the columns in which a series has a height, with the height before and the height,
    /// in steps.
    fn heights(&self, series: &Series, columns: usize, steps: usize) -> Vec<(usize, usize, usize)> {
        let points: Vec<_> = series.points.iter().map(|(x, y)| (self.x.fraction(*x), self.y.fraction(*y))).collect();
        let mut heights = Vec::new();
        let mut before = None;
        for column in 0..columns {
            if let Some(height) = highest(&points, fraction(column, columns), fraction(column + 1, columns)) {
                let height = place(height, steps);
                heights.push((column, before.unwrap_or(height), height));
                before = Some(height);
            }
        }
        heights
    }

    /// Returns the lines with their numbers.
    fn rows(&self) -> Vec<String> {
        let mut marks = vec![None; self.height];
        for tick in &self.y.ticks {
            marks[self.height - 1 - place(self.y.fraction(*tick), self.height)] = Some(label(*tick));
        }
        let row = |(mark, cells): (Option<String>, &[Cell])| {
            let edge = if mark.is_some() { '┤' } else { '│' };
            let runs = cells.chunk_by(|a, b| a.owner == b.owner).map(|run| {
                let text: String = run.iter().map(glyph).collect();
                if text.trim().is_empty() { text } else { self.look.series(&text, run[0].owner) }
            });
            format!("{:>gutter$} {edge}{}", mark.unwrap_or_default(), runs.collect::<String>(), gutter = self.gutter)
        };
        marks.into_iter().zip(self.cells.chunks(self.width)).map(row).collect()
    }

    /// Draws the horizontal axis.
    fn ruler(&self) -> String {
        let mut line = vec!['─'; self.width];
        for tick in &self.x.ticks {
            line[place(self.x.fraction(*tick), self.width)] = '┬';
        }
        format!("{:gutter$} └{}", "", line.into_iter().collect::<String>(), gutter = self.gutter)
    }

    /// Writes the numbers of the horizontal axis.
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

// === impl Look ===

/// The colour of each series: orange, blue, green, purple, brown, as in the SVG.
const COLOURS: [&str; 5] = ["\x1b[38;5;208m", "\x1b[38;5;39m", "\x1b[38;5;35m", "\x1b[38;5;175m", "\x1b[38;5;136m"];
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

impl Look {
    fn paint(self, style: &str, text: &str) -> String {
        if self.colour { format!("{style}{text}{PLAIN}") } else { text.to_owned() }
    }

    fn series(self, text: &str, owner: Option<usize>) -> String {
        owner.map_or_else(|| text.to_owned(), |owner| self.paint(COLOURS[owner % COLOURS.len()], text))
    }
}

/// Returns the highest point between two places, or the height of the line between its neighbours;
/// `None` outside the data.
fn highest(points: &[(f64, f64)], from: f64, to: f64) -> Option<f64> {
    let inside = points.iter().filter(|point| point.0 >= from && point.0 < to).map(|point| point.1);
    inside.reduce(f64::max).or_else(|| {
        let at = f64::midpoint(from, to);
        let after = points.iter().position(|point| point.0 >= at)?;
        let ((x0, y0), (x1, y1)) = (*points.get(after.checked_sub(1)?)?, points[after]);
        Some(if x1 > x0 { y0 + (y1 - y0) * (at - x0) / (x1 - x0) } else { y1 })
    })
}

/// Returns the steps that a line covers on its way from the height before.
fn jump(before: usize, at: usize) -> RangeInclusive<usize> {
    match before {
        lower if lower < at => lower + 1..=at,
        higher if higher > at => at..=higher - 1,
        _ => at..=at,
    }
}

/// Returns the character for a line: half blocks for the first, another for each after it, as there
/// may be no colours.
fn marker(chart: &Chart, index: usize) -> Option<char> {
    let lines_before = chart.series.iter().take(index).filter(|series| series.mark == Mark::Line).count();
    lines_before.checked_sub(1).map(|further| MARKERS[further % MARKERS.len()])
}

const MARKERS: [char; 4] = ['•', '×', '+', 'o'];

/// Returns `index` of `count` as a fraction.
#[expect(clippy::cast_precision_loss, reason = "a terminal is far narrower than 2^52")]
fn fraction(index: usize, count: usize) -> f64 {
    index as f64 / count as f64
}

/// Returns the index of a fraction among `count` places, the last one included.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a fraction of a terminal's height: small and not negative"
)]
fn place(fraction: f64, count: usize) -> usize {
    ((fraction.clamp(0.0, 1.0) * (count - 1) as f64).round() as usize).min(count - 1)
}

fn glyph(cell: &Cell) -> char {
    match (cell.over, cell.dots) {
        (Some(over), _) => over,
        (None, 0) => ' ',
        (None, dots) => char::from_u32(0x2800 + u32::from(dots)).unwrap_or(' '),
    }
}

/// Explains each glyph; as many entries to a line as fit.
fn legend(chart: &Chart, look: Look) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for (series, name) in chart.legend() {
        let sample = match series {
            None => "╌╌".to_owned(),
            Some((index, Mark::Area)) => look.series("⣏⢕", Some(index)),
            Some((index, Mark::Line)) => {
                let sample =
                    marker(chart, index).map_or_else(|| "▄▄".to_owned(), |marker| marker.to_string().repeat(2));
                look.series(&sample, Some(index))
            }
        };
        let needed = 2 + 1 + name.chars().count() + 3;
        if used > 0 && used + needed > look.width.max(40) {
            lines.push(String::new());
            used = 0;
        }
        used += needed;
        lines.last_mut().into_iter().for_each(|line| *line += &format!("{sample} {name}   "));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::Look;

    #[test]
    fn it_fits_the_width_it_was_given() {
        for width in [40, 60, 80, 132] {
            let text = sample().terminal(Look { width, height: 12, colour: false });
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(width), "{widest:?} in {width}\n{text}");
        }
    }

    #[test]
    fn every_line_has_a_mark_of_its_own() {
        let mut chart = sample();
        let second = super::Series {
            name: "another".to_owned(),
            points: vec![(0.0, 900.0), (20.0, 900.0)],
            ..chart.series[1].clone()
        };
        chart.series.push(second);
        let text = chart.terminal(Look { width: 80, height: 12, colour: false });
        assert!(text.contains("•• another"), "{text}");
        assert!(text.lines().any(|line| line.matches('•').count() > 50), "{text}");
    }

    #[test]
    fn without_colour_there_are_no_escapes_and_the_series_still_differ() {
        let text = sample().terminal(Look { width: 80, height: 12, colour: false });
        assert!(!text.contains('\x1b'));
        assert!(text.contains('▄') || text.contains('▀'), "the line\n{text}");
        assert!(text.chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)), "the area\n{text}");
        for word in ["without <gate>", "with gate", "webhook down", "1,500", "what the API can serve"] {
            assert!(text.contains(word), "no {word} in\n{text}");
        }
    }

    #[test]
    fn colour_is_only_added() {
        let look = Look { width: 80, height: 12, colour: true };
        let coloured = sample().terminal(look);
        let plain = sample().terminal(Look { colour: false, ..look });
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
