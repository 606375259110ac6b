//! The AWS account an access key id belongs to.
//!
//! The id contains the account's number: what follows its first four letters is base32, and of the
//! first 48 bits all but the first and the last seven are the number. AWS does not document this,
//! so the number only tells accounts apart (the keys of one role change hourly and stay one
//! account), and is not shown by default. Source: Tal Be'ery, "A short note on AWS KEY ID" (2023),
//! checked on published pairs.

/// Returns the account's twelve digits; `None` for an id in another format, such as those from
/// before 2019.
pub(super) fn of_key_id(id: &str) -> Option<String> {
    let letters = id.strip_prefix("AKIA").or_else(|| id.strip_prefix("ASIA")).filter(|letters| letters.len() == 16)?;
    let bits = letters.bytes().try_fold(0_u128, |bits, letter| Some(bits << 5 | base32(letter)?))?;
    let number = bits >> 32; // 16 letters are 80 bits, of which the first 48 count
    let is_new = number >> 47 == 1;
    let account = (number & 0x7fff_ffff_ff80) >> 7;
    (is_new && account < 1_000_000_000_000).then(|| format!("{account:012}"))
}

fn base32(letter: u8) -> Option<u128> {
    match letter {
        b'A'..=b'Z' => Some(u128::from(letter - b'A')),
        b'2'..=b'7' => Some(u128::from(letter - b'2') + 26),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_read_from_a_published_key_id() {
        assert_eq!(of_key_id("ASIAQNZGKIQY56JQ7WML").as_deref(), Some("029608264753"));
        assert_eq!(of_key_id("ASIAY34FZKBOKMUTVV7A").as_deref(), Some("609629065308"));
    }

    #[test]
    fn other_ids_have_none() {
        for id in
            ["AKIAIOSFODNN7EXAMPLE", "AKID", "", "ASIAQNZGKIQY56JQ7WM1", "AROAQNZGKIQY56JQ7WML", "ASIAÄNZGKIQY56JQ7WM"]
        {
            assert_eq!(of_key_id(id), None, "{id}");
        }
    }
}
