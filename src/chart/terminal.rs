//! The chart in a terminal: braille dots for areas, half blocks for lines, so that they differ
//! without colour.

use super::{
    Chart, Mark, Series,
    axis::{Scale, label},
};

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
    let x = Scale::to(chart.width(), 10);
    let height = look.height.max(4);
    let y = chart.upright(if height >= 10 { 5 } else { 3 });
    let gutter = y.ticks.iter().map(|tick| label(*tick).chars().count()).max().unwrap_or(1);
    let width = look.width.max(40) - gutter - 2;
    let mut canvas = Canvas::new(width, height);
    for level in &chart.levels {
        canvas.level(y.fraction(level.y));
    }
    for (index, series) in chart.series.iter().enumerate() {
        let heights = Heights::of(series, &x, &y);
        match series.mark {
            Mark::Area => canvas.area(&heights, index),
            Mark::Line => match marker(chart, index) {
                None => canvas.line(&heights, index),
                Some(marker) => canvas.dots(&heights, index, marker),
            },
        }
    }
    let paint = Paint { colour: look.colour };
    let mut lines = vec![fit(&paint.bold(&chart.title), &chart.title, look.width)];
    lines.extend(legend(chart, paint, look.width.max(40)));
    lines.push(chart.y.name.clone());
    lines.extend(rows(&canvas, &y, gutter, paint));
    lines.push(ruler(&x, width, gutter));
    lines.push(numbers(&x, width, gutter));
    lines.extend(chart.bands.iter().map(|band| under(band, &x, width, gutter)));
    lines.push(format!("{:>1$}", chart.x.name, gutter + 2 + width));
    let mut text = String::new();
    for line in lines {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A series as a function from a place on the horizontal axis to a height, both as fractions.
struct Heights {
    points: Vec<(f64, f64)>,
}

// === impl Heights ===

impl Heights {
    fn of(series: &Series, x: &Scale, y: &Scale) -> Self {
        Self { points: series.points.iter().map(|point| (x.fraction(point.0), y.fraction(point.1))).collect() }
    }

    /// Returns the highest point between two places, or the line between the neighbours; `None`
    /// outside the data.
    fn highest(&self, from: f64, to: f64) -> Option<f64> {
        let inside = self.points.iter().filter(|point| point.0 >= from && point.0 < to).map(|point| point.1);
        inside.reduce(f64::max).or_else(|| self.between(f64::midpoint(from, to)))
    }

    fn between(&self, at: f64) -> Option<f64> {
        let after = self.points.iter().position(|point| point.0 >= at)?;
        let (x1, y1) = self.points[after];
        let (x0, y0) = *self.points.get(after.checked_sub(1)?)?;
        Some(if x1 > x0 { y0 + (y1 - y0) * (at - x0) / (x1 - x0) } else { y1 })
    }
}

/// One character of the plot.
#[derive(Clone, Copy)]
struct Cell {
    /// Braille dots, as Unicode numbers them.
    dots: u8,
    /// A half block or dash drawn over them.
    over: Option<char>,
    /// The series that gives it its colour.
    owner: Option<usize>,
}

struct Canvas {
    width: usize,
    height: usize,
    cells: Vec<Cell>,
}

/// Dots of one braille cell, by row and column.
const DOTS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

// === impl Canvas ===

impl Canvas {
    fn new(width: usize, height: usize) -> Self {
        Self { width, height, cells: vec![Cell { dots: 0, over: None, owner: None }; width * height] }
    }

    fn cell(&mut self, column: usize, row: usize) -> &mut Cell {
        let at = row.min(self.height - 1) * self.width + column.min(self.width - 1);
        &mut self.cells[at]
    }

    fn level(&mut self, height: f64) {
        let row = self.height - 1 - place(height, self.height);
        for column in 0..self.width {
            self.cell(column, row).over = Some('╌');
        }
    }

    /// Draws a line of dots with every second dot below it.
    fn area(&mut self, heights: &Heights, owner: usize) {
        let (columns, rows) = (self.width * 2, self.height * 4);
        let mut before = None;
        for column in 0..columns {
            let Some(height) = heights.highest(fraction(column, columns), fraction(column + 1, columns)) else {
                continue;
            };
            let top = place(height, rows);
            let from = before.map_or(top, |before: usize| before.min(top));
            for up in 0..=top {
                if up >= from || (up + column) % 2 == 0 {
                    let row = rows - 1 - up;
                    let cell = self.cell(column / 2, row / 4);
                    cell.dots |= DOTS[row % 4][column % 2];
                    cell.owner = Some(owner);
                    cell.over = None;
                }
            }
            before = Some(top);
        }
    }

    /// Draws half blocks, joined where the line jumps.
    fn line(&mut self, heights: &Heights, owner: usize) {
        let halves = self.height * 2;
        let mut before: Option<usize> = None;
        for column in 0..self.width {
            let Some(height) = heights.highest(fraction(column, self.width), fraction(column + 1, self.width)) else {
                continue;
            };
            let half = place(height, halves);
            let (low, high) = before.map_or((half, half), |before| {
                if before < half { (before + 1, half) } else { (half, before.saturating_sub(1).max(half)) }
            });
            for at in low..=high {
                let row = self.height - 1 - at / 2;
                let mark = if at % 2 == 0 { '▄' } else { '▀' };
                let cell = self.cell(column, row);
                let joined = cell.owner == Some(owner) && cell.over.is_some_and(|other| other != mark);
                *cell = Cell { dots: 0, over: Some(if joined { '█' } else { mark }), owner: Some(owner) };
            }
            before = Some(half);
        }
    }

    /// Draws one character in each column; several where the line jumps.
    fn dots(&mut self, heights: &Heights, owner: usize, marker: char) {
        let mut before: Option<usize> = None;
        for column in 0..self.width {
            let Some(height) = heights.highest(fraction(column, self.width), fraction(column + 1, self.width)) else {
                continue;
            };
            let up = place(height, self.height);
            let (low, high) = match before {
                Some(before) if before < up => (before + 1, up),
                Some(before) if before > up => (up, before - 1),
                _ => (up, up),
            };
            for at in low..=high {
                *self.cell(column, self.height - 1 - at) = Cell { dots: 0, over: Some(marker), owner: Some(owner) };
            }
            before = Some(up);
        }
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

/// The colours, or none.
#[derive(Clone, Copy)]
struct Paint {
    colour: bool,
}

/// The colour of each series: orange, blue, green, purple, brown, as in the SVG.
const COLOURS: [&str; 5] = ["\x1b[38;5;208m", "\x1b[38;5;39m", "\x1b[38;5;35m", "\x1b[38;5;175m", "\x1b[38;5;136m"];
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

// === impl Paint ===

impl Paint {
    fn bold(self, text: &str) -> String {
        if self.colour { format!("{BOLD}{text}{PLAIN}") } else { text.to_owned() }
    }

    fn series(self, text: &str, owner: Option<usize>) -> String {
        match owner {
            Some(owner) if self.colour => format!("{}{text}{PLAIN}", COLOURS[owner % COLOURS.len()]),
            _ => text.to_owned(),
        }
    }
}

/// Returns the plot's lines with their numbers.
fn rows(canvas: &Canvas, y: &Scale, gutter: usize, paint: Paint) -> Vec<String> {
    let mut marks = vec![None; canvas.height];
    for tick in &y.ticks {
        marks[canvas.height - 1 - place(y.fraction(*tick), canvas.height)] = Some(label(*tick));
    }
    let mut lines = Vec::new();
    for (row, mark) in marks.into_iter().enumerate() {
        let edge = if mark.is_some() { '┤' } else { '│' };
        let mut line = format!("{:>gutter$} {edge}", mark.unwrap_or_default());
        let cells = &canvas.cells[row * canvas.width..(row + 1) * canvas.width];
        for run in cells.chunk_by(|a, b| a.owner == b.owner) {
            let text: String = run.iter().map(glyph).collect();
            let empty = text.trim().is_empty();
            line.push_str(&if empty { text } else { paint.series(&text, run[0].owner) });
        }
        lines.push(line);
    }
    lines
}

fn glyph(cell: &Cell) -> char {
    match (cell.over, cell.dots) {
        (Some(over), _) => over,
        (None, 0) => ' ',
        (None, dots) => char::from_u32(0x2800 + u32::from(dots)).unwrap_or(' '),
    }
}

/// Explains each glyph; as many entries to a line as fit.
fn legend(chart: &Chart, paint: Paint, width: usize) -> Vec<String> {
    let mut entries = Vec::new();
    for (index, series) in chart.series.iter().enumerate() {
        let sample = match (series.mark, marker(chart, index)) {
            (Mark::Area, _) => "⣏⢕".to_owned(),
            (Mark::Line, None) => "▄▄".to_owned(),
            (Mark::Line, Some(marker)) => marker.to_string().repeat(2),
        };
        entries.push((paint.series(&sample, Some(index)), &series.name));
    }
    entries.extend(chart.levels.iter().map(|level| ("╌╌".to_owned(), &level.name)));
    let (mut lines, mut line, mut used) = (Vec::new(), String::new(), 0);
    for (sample, name) in entries {
        let needed = 2 + 1 + name.chars().count() + 3;
        if used > 0 && used + needed > width {
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        line.push_str(&format!("{sample} {name}   "));
        used += needed;
    }
    lines.push(line);
    lines
}

/// Draws the horizontal axis.
fn ruler(x: &Scale, width: usize, gutter: usize) -> String {
    let mut line: Vec<char> = vec!['─'; width];
    for tick in &x.ticks {
        line[place(x.fraction(*tick), width)] = '┬';
    }
    format!("{:gutter$} └{}", "", line.into_iter().collect::<String>())
}

/// Writes the axis's numbers and their unit.
fn numbers(x: &Scale, width: usize, gutter: usize) -> String {
    let mut line = vec![' '; width];
    for tick in &x.ticks {
        let text = label(*tick);
        let length = text.chars().count();
        let start = place(x.fraction(*tick), width).saturating_sub(length / 2).min(width.saturating_sub(length));
        for (offset, c) in text.chars().enumerate() {
            line[(start + offset).min(width - 1)] = c;
        }
    }
    let text: String = line.into_iter().collect();
    format!("{:gutter$}  {}", "", text.trim_end())
}

/// Draws a band under the axis.
fn under(band: &super::Band, x: &Scale, width: usize, gutter: usize) -> String {
    let (from, to) = (place(x.fraction(band.from), width), place(x.fraction(band.to), width));
    let room = to.saturating_sub(from) + 1;
    let name: String = format!(" {} ", band.name);
    let text = if name.chars().count() + 2 <= room {
        let rest = room - 2 - name.chars().count();
        format!("└{}{name}{}┘", "─".repeat(rest / 2), "─".repeat(rest - rest / 2))
    } else {
        format!("└{}┘{name}", "─".repeat(room.saturating_sub(2)))
    };
    format!("{:gutter$}  {:from$}{text}", "", "")
}

/// Returns `painted` if its plain text fits; otherwise cuts the plain text.
fn fit(painted: &str, plain: &str, width: usize) -> String {
    if plain.chars().count() <= width { painted.to_owned() } else { plain.chars().take(width).collect() }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::sample, Look};

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
