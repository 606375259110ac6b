//! Characters that steer a terminal or a reader, in text from outside.

/// True for a control character, for an end of line by Unicode's rules, and for a character that
/// changes the direction of the text after it.
pub fn steers(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{061c}'
                | '\u{2028}'
                | '\u{2029}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{202a}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
        )
}

/// Returns the character as JSON writes it out. All that steer are in the basic plane, where JSON's
/// escape has four digits.
pub fn json_escape(c: char) -> String {
    format!("\\u{:04x}", u32::from(c))
}

/// Writes out what steers in JSON as serde wrote it, without line breaks of its own: the value
/// stays what it was.
pub fn json_in_clear(json: Vec<u8>) -> Vec<u8> {
    if json.iter().all(|byte| (0x20..0x7f).contains(byte)) {
        return json;
    }
    match String::from_utf8(json) {
        Ok(text) if text.contains(steers) => {
            let escaped = |c: char| if steers(c) { json_escape(c) } else { c.to_string() };
            text.chars().map(escaped).collect::<String>().into_bytes()
        }
        Ok(text) => text.into_bytes(),
        Err(error) => error.into_bytes(),
    }
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
