//! Characters in text of unknown origin that would control a terminal or mislead a reader.

/// Returns true for control characters, Unicode's line ends, and characters that change the
/// direction of text.
pub fn steers(c: char) -> bool {
    let is_turn = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') || is_turn
}

/// Returns the JSON escape of a character for which [`steers`] is true. Four digits suffice for
/// each of them.
pub fn json_escape(c: char) -> String {
    format!("\\u{:04x}", u32::from(c))
}

/// Escapes the characters for which [`steers`] is true in a JSON text on one line. Parsed, it gives
/// the same value.
pub fn json_in_clear(json: Vec<u8>) -> Vec<u8> {
    if json.iter().all(|byte| (0x20..0x7f).contains(byte)) {
        return json;
    }
    let text = String::from_utf8_lossy(&json);
    let escaped = |c: char| if steers(c) { json_escape(c) } else { c.to_string() };
    text.chars().map(escaped).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_stays_what_it_was_and_steers_nothing() {
        let all: String = (0..=0x2100).chain([0xfeff, 0x1f600]).filter_map(char::from_u32).collect();
        let json = json_in_clear(serde_json::to_vec(&all).expect("text"));
        let text = std::str::from_utf8(&json).expect("text");
        assert!(!text.contains(steers), "{text:?}");
        assert_eq!(serde_json::from_slice::<String>(&json).expect("JSON"), all);
        assert!(text.contains("\\u009b") && text.contains("\\u202e"), "C1 and bidirectional controls");
        assert!(text.contains('\u{e9}'), "letters are not");
    }
}
