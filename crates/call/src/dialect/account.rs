//! The account that an AWS access key id belongs to.
//!
//! The id carries it: of the 48 bits that begin the base32 after its first four letters, the 40
//! below the first are the account. AWS does not document this, so it only tells accounts apart
//! (the keys of one role change hourly and stay one account) and is shown to no one unasked.
//! Source: Tal Be'ery, "A short note on AWS KEY ID" (2023), checked on published pairs.

/// The account's twelve digits; `None` for an id of another form, such as those from before 2019.
pub(super) fn of_key_id(id: &str) -> Option<String> {
    let letters = id.strip_prefix("AKIA").or_else(|| id.strip_prefix("ASIA"))?;
    if letters.len() != 16 || letters.bytes().any(|letter| base32(letter).is_none()) {
        return None;
    }
    let bits = letters.bytes().take(10).try_fold(0_u64, |bits, letter| Some(bits << 5 | base32(letter)?))?;
    let number = bits >> 2; // ten letters are 50 bits, of which 48 count
    let is_new = number >> 47 == 1;
    let account = (number & 0x7fff_ffff_ff80) >> 7;
    (is_new && account < 1_000_000_000_000).then(|| format!("{account:012}"))
}

fn base32(letter: u8) -> Option<u64> {
    match letter {
        b'A'..=b'Z' => Some(u64::from(letter - b'A')),
        b'2'..=b'7' => Some(u64::from(letter - b'2') + 26),
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
