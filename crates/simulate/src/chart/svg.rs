//! Draws a chart as an SVG file. It prints in black on white, and follows dark mode.
//!
//! Colours are written as values in CSS classes, and overridden by media queries. Some viewers do
//! not support CSS variables, and would paint everything black.

use super::axis::{Scale, label};
use super::{Band, Chart, Mark, Series};

/// The width of the picture, in SVG units.
const WIDTH: f64 = 960.0;
/// The height of the picture: title, note and legend above, the axis below.
const HEIGHT: f64 = 480.0;
/// The distance from the picture's left edge to the plot.
const LEFT: f64 = 78.0;
const RIGHT: f64 = WIDTH - 24.0;
const TOP: f64 = 118.0;
const BOTTOM: f64 = HEIGHT - 56.0;

/// The number of styles for series; with more series, they are used again.
const STYLES: usize = 5;

/// The style sheet. Its colours suit all kinds of colour vision (Okabe and Ito), on white, on black
/// and in print.
const STYLE: &str = include_str!("svg.css");

/// Draws a chart as a whole file.
pub(super) fn draw(chart: &Chart) -> String {
    let plot = Plot { x: Scale::to(chart.width(), 10), y: chart.upright(5) };
    let level = |y: f64| format!("<path class=\"level\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>");
    let mut parts = vec![head(chart)];
    parts.extend(chart.bands.iter().map(|band| plot.band(band)));
    parts.push(plot.axes(chart));
    parts.extend(chart.series.iter().enumerate().map(|(index, series)| plot.series(series, index % STYLES)));
    parts.extend(chart.levels.iter().map(|it| level(plot.y(it.y))));
    parts.push(legend(chart));
    parts.push("</svg>\n".to_owned());
    parts.concat()
}

/// Converts the numbers of a chart to positions in the picture.
struct Plot {
    x: Scale,
    y: Scale,
}

// === impl Plot ===

impl Plot {
    fn x(&self, value: f64) -> f64 {
        LEFT + self.x.fraction(value) * (RIGHT - LEFT)
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - self.y.fraction(value) * (BOTTOM - TOP)
    }

    fn band(&self, band: &Band) -> String {
        let from = self.x(band.from);
        let to = self.x(band.to);
        let name = escaped(&band.name);
        let width = to - from;
        let height = BOTTOM - TOP;
        let middle = f64::midpoint(from, to);
        let above = TOP - 6.0;
        format!(
            "<rect class=\"band\" x=\"{from:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{height}\"/>\
             <text class=\"tick soft\" x=\"{middle:.1}\" y=\"{above}\" text-anchor=\"middle\">{name}</text>"
        )
    }

    fn axes(&self, chart: &Chart) -> String {
        let row = |tick: &f64| {
            let line = self.y(*tick);
            let text = label(*tick);
            let x = LEFT - 8.0;
            let y = line + 4.0;
            format!(
                "<path class=\"grid\" d=\"M{LEFT} {line:.1}H{RIGHT}\"/>\
                 <text class=\"tick soft\" x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{text}</text>"
            )
        };
        let column = |tick: &f64| {
            let x = self.x(*tick);
            let text = label(*tick);
            let foot = BOTTOM + 5.0;
            let below = BOTTOM + 20.0;
            format!(
                "<path class=\"axis\" d=\"M{x:.1} {BOTTOM}V{foot}\"/>\
                 <text class=\"tick soft\" x=\"{x:.1}\" y=\"{below}\" text-anchor=\"middle\">{text}</text>"
            )
        };
        let x = f64::midpoint(LEFT, RIGHT);
        let y = f64::midpoint(TOP, BOTTOM);
        let names = format!(
            "<path class=\"axis\" fill=\"none\" d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\"/>\
             <text class=\"name soft\" x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text class=\"name soft\" transform=\"translate(20 {y}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            HEIGHT - 14.0,
            escaped(&chart.x.name),
            escaped(&chart.y.name),
        );
        self.y.ticks.iter().map(row).chain(self.x.ticks.iter().map(column)).chain([names]).collect()
    }

    /// Draws one series.
    fn series(&self, series: &Series, style: usize) -> String {
        let (Some(first), Some(last)) = (series.points.first(), series.points.last()) else { return String::new() };
        let points = series.points.iter().map(|(x, y)| format!("{:.1} {:.1}", self.x(*x), self.y(*y)));
        let path = format!("M{}", points.collect::<Vec<_>>().join("L"));
        let from = self.x(first.0);
        let to = self.x(last.0);
        let name = escaped(&series.name);
        let area = match series.mark {
            Mark::Area => {
                format!("<path class=\"area{style}\" d=\"{path}L{to:.1} {BOTTOM}L{from:.1} {BOTTOM}Z\"/>")
            }
            Mark::Line => String::new(),
        };
        format!("{area}<path class=\"line{style}\" stroke-linejoin=\"round\" d=\"{path}\"><title>{name}</title></path>")
    }
}

/// Returns the beginning of the file: opening tag, description for screen readers, style sheet,
/// background, title and note.
fn head(chart: &Chart) -> String {
    let title = escaped(&chart.title);
    let note = escaped(&chart.note);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-labelledby=\"title note\" font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\">\n\
         <title id=\"title\">{title}</title><desc id=\"note\">{note}</desc>\n<style>\n{STYLE}</style>\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n\
         <text class=\"title ink\" x=\"{LEFT}\" y=\"32\">{title}</text>\n\
         <text class=\"note soft\" x=\"{LEFT}\" y=\"54\">{note}</text>\n"
    )
}

/// Draws the legend above the plot, in as many rows as it needs.
fn legend(chart: &Chart) -> String {
    let width: f64 = chart.legend().map(|(_, name)| SAMPLE + estimated_width(name)).sum();
    let mut x = LEFT;
    let mut y = if LEFT + width > RIGHT { 76.0 } else { 84.0 };
    let mut out = String::new();
    for (style, name) in chart.legend() {
        let style = style.map(|(index, mark)| (index % STYLES, mark));
        let width = SAMPLE + estimated_width(name);
        if x > LEFT && x + width > RIGHT {
            x = LEFT;
            y += 18.0;
        }
        let top = y - 11.0;
        let middle = y - 4.0;
        let at = x + 34.0;
        out += &match style {
            Some((style, Mark::Area)) => format!(
                "<rect class=\"area{style}\" x=\"{x:.0}\" y=\"{top}\" width=\"26\" height=\"14\"/>\
                 <path class=\"line{style}\" d=\"M{x:.0} {top}h26\"/>"
            ),
            Some((style, Mark::Line)) => format!("<path class=\"line{style}\" d=\"M{x:.0} {middle}h26\"/>"),
            None => format!("<path class=\"level\" d=\"M{x:.0} {middle}h26\"/>"),
        };
        out += &format!("<text class=\"name ink\" x=\"{at:.0}\" y=\"{y}\">{}</text>\n", escaped(name));
        x += width;
    }
    out
}

/// The width of the sample of a line in the legend, and of the space around its name.
const SAMPLE: f64 = 60.0;

/// Estimates the width of a text in the legend, because the fonts are not known here.
fn estimated_width(text: &str) -> f64 {
    text.chars().map(|c| if c.is_uppercase() || c.is_ascii_digit() { 8.2 } else { 6.8 }).sum()
}

/// Escapes text so that it cannot become markup.
fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    text.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;

    #[test]
    fn it_has_axes_units_a_legend_and_both_series() {
        let svg = sample().svg();
        for part in
            ["calls per second</text>", "seconds</text>", "without &lt;gate&gt;", "with gate", "webhook down", "1,500"]
        {
            assert!(svg.contains(part), "no {part} in {svg}");
        }
        assert_eq!(svg.matches("class=\"area0\" d=").count(), 1, "the area is shaded");
        assert_eq!(svg.matches("class=\"area1\" d=").count(), 0, "the line is not");
    }

    #[test]
    fn it_follows_dark_mode_and_print_and_needs_nothing_from_outside() {
        let svg = sample().svg();
        assert!(svg.contains("prefers-color-scheme:dark") && svg.contains("@media print"));
        assert_eq!(svg.matches("http").count(), 1, "only the namespace");
        assert!(!svg.contains("<script") && !svg.contains("@import") && !svg.contains("url("));
    }

    #[test]
    fn every_tag_is_closed() {
        let svg = sample().svg();
        let mut open = Vec::new();
        for tag in svg.split('<').skip(1) {
            let inside = tag.split('>').next().expect("split gives at least one");
            match inside.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name), "closed out of order"),
                None if inside.ends_with('/') => {}
                None => open.push(inside.split([' ', '\n']).next().expect("a name")),
            }
        }
        assert!(open.is_empty(), "left open: {open:?}");
    }
}
