//! Figures as people write them.

/// A whole number with its thousands apart.
pub(crate) fn thousands(number: impl ToString) -> String {
    grouped(&number.to_string())
}

/// Digits with a comma between each three.
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
