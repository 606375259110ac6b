//! Numbers as people write them.

/// Formats a whole number with separators between thousands.
pub(crate) fn thousands(number: impl Copy + ToString) -> String {
    grouped(&number.to_string())
}

/// Puts a comma between each three digits.
pub(super) fn grouped(digits: &str) -> String {
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
