//! Sparklines: numbers over time in a line, as SVG for a page.

use super::text::escaped;

/// Draws values as SVG, oldest first, with space for `room` of them; `says` is the text for screen
/// readers.
pub fn svg(values: &[u64], room: usize, says: &str) -> String {
    let most = values.iter().max().copied().unwrap_or_default().max(1);
    let width = room.max(2) - 1;
    let start = room.max(2) - values.len().clamp(1, room.max(2));
    let point = |(place, value): (usize, &u64)| {
        // No screen shows less than a tenth of a unit.
        let height = value.saturating_mul(HEIGHT * 10) / most;
        let y = (HEIGHT * 10).saturating_sub(height);
        format!("{},{}.{}", start + place, y / 10 + 1, y % 10)
    };
    let line = values.iter().enumerate().map(point).collect::<Vec<_>>().join(" ");
    let floor = HEIGHT + 1;
    let area = match values {
        [] => String::new(),
        _ => format!("<polygon points=\"{start},{floor} {line} {width},{floor}\"/>"),
    };
    format!(
        "<svg class=\"spark\" viewBox=\"0 0 {width} {}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">{area}\
         <polyline points=\"{line}\"/></svg>",
        HEIGHT + 2,
        escaped(says),
    )
}

const HEIGHT: u64 = 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_at_the_right_and_the_most_at_the_top() {
        let picture = svg(&[0, 5, 10], 120, "three \"values\"");
        assert!(picture.contains("points=\"117,31.0 118,16.0 119,1.0\""), "{picture}");
        assert!(picture.contains("aria-label=\"three &quot;values&quot;\""), "{picture}");
        assert!(!svg(&[], 120, "").contains("polygon"));
    }
}
