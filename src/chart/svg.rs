//! The chart as an SVG file of its own: it opens in a browser, prints in black on white, and
//! follows the reader's dark mode.
//!
//! Colours are plain values in classes and are overridden by media queries, not custom properties:
//! viewers that do not know CSS variables would paint everything black.

use std::fmt::Write as _;

use super::{
    Band, Chart, Mark, Series,
    axis::{Scale, label},
};

/// The width of the chart, in its own units.
const WIDTH: f64 = 960.0;
/// The height: title, note and legend above, the axis below.
const HEIGHT: f64 = 480.0;
/// The plot's edges.
const LEFT: f64 = 78.0;
const RIGHT: f64 = WIDTH - 24.0;
const TOP: f64 = 118.0;
const BOTTOM: f64 = HEIGHT - 56.0;

/// The number of styles that look different.
const STYLES: usize = 5;

/// Colours that people with any colour vision tell apart (Okabe and Ito), on white, on black and in
/// print.
const STYLE: &str = "\
    .paper{fill:#fff} .ink{fill:#1b1f24} .soft{fill:#59636e} .grid{stroke:#e2e6ea} .axis{stroke:#59636e}
    .band{fill:#e69f00;fill-opacity:.13} .level{stroke:#59636e;stroke-width:1.2;stroke-dasharray:6 4;fill:none}
    .line0{stroke:#d55e00;stroke-width:1.6;fill:none} .area0{fill:#d55e00;fill-opacity:.22;stroke:none}
    .line1{stroke:#0072b2;stroke-width:2.8;fill:none} .area1{fill:#0072b2;fill-opacity:.22;stroke:none}
    .line2{stroke:#009e73;stroke-width:2.2;fill:none;stroke-dasharray:8 3} .area2{fill:#009e73;fill-opacity:.2;stroke:none}
    .line3{stroke:#cc79a7;stroke-width:2.2;fill:none;stroke-dasharray:2 3} .area3{fill:#cc79a7;fill-opacity:.2;stroke:none}
    .line4{stroke:#8a6d00;stroke-width:2.2;fill:none;stroke-dasharray:10 3 2 3} .area4{fill:#8a6d00;fill-opacity:.2;stroke:none}
    .title{font-size:19px;font-weight:600} .note{font-size:13px} .tick{font-size:12px} .name{font-size:13px}
    @media (prefers-color-scheme:dark){
      .paper{fill:#14171a} .ink{fill:#eceff2} .soft{fill:#a3adb8} .grid{stroke:#2b3138} .axis{stroke:#a3adb8} .level{stroke:#a3adb8}
      .line0{stroke:#ff8a3d} .area0{fill:#ff8a3d} .line1{stroke:#56b4e9} .area1{fill:#56b4e9} .line2{stroke:#2fd3a2} .area2{fill:#2fd3a2}
      .line3{stroke:#f0a6cb} .area3{fill:#f0a6cb} .line4{stroke:#f0e442} .area4{fill:#f0e442}
    }
    @media print{
      .paper{fill:#fff} .ink{fill:#000} .soft{fill:#333} .grid{stroke:#ddd} .axis{stroke:#333} .level{stroke:#333}
      .line0{stroke:#d55e00} .area0{fill:#d55e00} .line1{stroke:#0072b2} .area1{fill:#0072b2} .line2{stroke:#009e73} .area2{fill:#009e73}
      .line3{stroke:#cc79a7} .area3{fill:#cc79a7} .line4{stroke:#8a6d00} .area4{fill:#8a6d00}
    }
";

/// Draws the whole file.
pub(super) fn draw(chart: &Chart) -> String {
    let plot = Plot { x: Scale::to(chart.width(), 10), y: chart.upright(5) };
    let mut out = String::with_capacity(16 * 1024);
    head(&mut out, chart);
    for band in &chart.bands {
        plot.band(&mut out, band);
    }
    plot.axes(&mut out, chart);
    for (index, series) in chart.series.iter().enumerate() {
        plot.series(&mut out, series, index % STYLES);
    }
    for level in &chart.levels {
        let y = plot.y(level.y);
        put(&mut out, format_args!("<path class=\"level\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>"));
    }
    legend(&mut out, chart);
    out.push_str("</svg>\n");
    out
}

/// Maps numbers to places on the paper.
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

    fn band(&self, out: &mut String, band: &Band) {
        let (from, to) = (self.x(band.from), self.x(band.to));
        let (width, height, middle) = (to - from, BOTTOM - TOP, f64::midpoint(from, to));
        put(
            out,
            format_args!("<rect class=\"band\" x=\"{from:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{height}\"/>"),
        );
        let (name, above) = (escaped(&band.name), TOP - 6.0);
        put(
            out,
            format_args!(
                "<text class=\"tick soft\" x=\"{middle:.1}\" y=\"{above}\" text-anchor=\"middle\">{name}</text>"
            ),
        );
    }

    fn axes(&self, out: &mut String, chart: &Chart) {
        for tick in &self.y.ticks {
            let (y, text) = (self.y(*tick), label(*tick));
            put(out, format_args!("<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>"));
            let (x, y) = (LEFT - 8.0, y + 4.0);
            put(
                out,
                format_args!("<text class=\"tick soft\" x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{text}</text>"),
            );
        }
        for tick in &self.x.ticks {
            let (x, text) = (self.x(*tick), label(*tick));
            let (foot, below) = (BOTTOM + 5.0, BOTTOM + 20.0);
            put(out, format_args!("<path class=\"axis\" d=\"M{x:.1} {BOTTOM}V{foot}\"/>"));
            put(
                out,
                format_args!(
                    "<text class=\"tick soft\" x=\"{x:.1}\" y=\"{below}\" text-anchor=\"middle\">{text}</text>"
                ),
            );
        }
        put(out, format_args!("<path class=\"axis\" fill=\"none\" d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\"/>"));
        let (middle, low) = (f64::midpoint(LEFT, RIGHT), HEIGHT - 14.0);
        let name = escaped(&chart.x.name);
        put(
            out,
            format_args!("<text class=\"name soft\" x=\"{middle}\" y=\"{low}\" text-anchor=\"middle\">{name}</text>"),
        );
        let (middle, name) = (f64::midpoint(TOP, BOTTOM), escaped(&chart.y.name));
        put(
            out,
            format_args!(
                "<text class=\"name soft\" transform=\"translate(20 {middle}) rotate(-90)\" text-anchor=\"middle\">{name}</text>"
            ),
        );
    }

    fn series(&self, out: &mut String, series: &Series, style: usize) {
        let (Some(first), Some(last)) = (series.points.first(), series.points.last()) else { return };
        let mut path = String::new();
        for (index, (x, y)) in series.points.iter().enumerate() {
            let command = if index == 0 { 'M' } else { 'L' };
            put(&mut path, format_args!("{command}{:.1} {:.1}", self.x(*x), self.y(*y)));
        }
        if series.mark == Mark::Area {
            let (from, to) = (self.x(first.0), self.x(last.0));
            put(out, format_args!("<path class=\"area{style}\" d=\"{path}L{to:.1} {BOTTOM}L{from:.1} {BOTTOM}Z\"/>"));
        }
        let name = escaped(&series.name);
        put(
            out,
            format_args!(
                "<path class=\"line{style}\" stroke-linejoin=\"round\" d=\"{path}\"><title>{name}</title></path>"
            ),
        );
    }
}

/// Writes the opening tag, a description for readers who cannot see, colours, paper, title and
/// note.
fn head(out: &mut String, chart: &Chart) {
    let (title, note) = (escaped(&chart.title), escaped(&chart.note));
    put(
        out,
        format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-labelledby=\"title note\" font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\">\n\
             <title id=\"title\">{title}</title><desc id=\"note\">{note}</desc>\n<style>\n{STYLE}</style>\n\
             <rect class=\"paper\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n\
             <text class=\"title ink\" x=\"{LEFT}\" y=\"32\">{title}</text>\n\
             <text class=\"note soft\" x=\"{LEFT}\" y=\"54\">{note}</text>\n"
        ),
    );
}

/// Writes samples of every line, above the plot; those that do not fit the first row go into a
/// second.
fn legend(out: &mut String, chart: &Chart) {
    let names = chart.series.iter().map(|series| &series.name).chain(chart.levels.iter().map(|level| &level.name));
    let width: f64 = names.map(|name| SAMPLE + estimated_width(name)).sum();
    let (mut x, mut y) = (LEFT, if LEFT + width > RIGHT { 76.0 } else { 84.0 });
    let mut entry = |sample: &dyn Fn(f64, f64) -> String, name: &str| {
        if x > LEFT && x + SAMPLE + estimated_width(name) > RIGHT {
            (x, y) = (LEFT, y + 18.0);
        }
        let (text, at) = (escaped(name), x + 34.0);
        put(out, format_args!("{}<text class=\"name ink\" x=\"{at:.0}\" y=\"{y}\">{text}</text>\n", sample(x, y)));
        x += SAMPLE + estimated_width(name);
    };
    for (index, series) in chart.series.iter().enumerate() {
        let style = index % STYLES;
        let shaded = series.mark == Mark::Area;
        entry(
            &|x, y| {
                let (top, middle) = (y - 11.0, y - 4.0);
                let area = format!("<rect class=\"area{style}\" x=\"{x:.0}\" y=\"{top}\" width=\"26\" height=\"14\"/>");
                let at = if shaded { top } else { middle };
                let line = format!("<path class=\"line{style}\" d=\"M{x:.0} {at}h26\"/>");
                if shaded { area + &line } else { line }
            },
            &series.name,
        );
    }
    for level in &chart.levels {
        entry(&|x, y| format!("<path class=\"level\" d=\"M{x:.0} {}h26\"/>", y - 4.0), &level.name);
    }
}

/// The width of a legend's sample, and of the space around its name.
const SAMPLE: f64 = 60.0;

/// Estimates the width of a legend's text: the file has no fonts of its own, so it cannot know.
fn estimated_width(text: &str) -> f64 {
    text.chars().map(|c| if c.is_uppercase() || c.is_ascii_digit() { 8.2 } else { 6.8 }).sum()
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a String cannot fail");
}

/// Escapes text so that it cannot become markup.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
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
