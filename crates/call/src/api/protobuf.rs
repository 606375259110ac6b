//! Fields of protobuf messages, whole or cut off.

/// The fields of a message, up to the first malformed one.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

/// The value of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum FieldValue<'a> {
    Number(u64),
    Bytes {
        bytes: &'a [u8],
        is_whole: bool,
    },
    /// A number of fixed size; its value is not needed.
    Fixed,
}

/// Returns the bytes of the first field `wanted`, as far as they are there.
pub(super) fn bytes(message: &[u8], wanted: u64) -> Option<&[u8]> {
    Fields(message).find_map(|(number, value)| value.bytes().filter(|_| number == wanted))
}

// === impl Fields ===

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> FieldValue<'a> {
        let (bytes, rest) = self.0.split_at_checked(length).unwrap_or((self.0, &[]));
        self.0 = rest;
        FieldValue::Bytes { bytes, is_whole: bytes.len() == length }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, FieldValue<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => FieldValue::Number(self.varint()?),
            1 | 5 => {
                self.take(if tag & 7 == 1 { 8 } else { 4 });
                FieldValue::Fixed
            }
            2 => {
                let length = self.varint()?;
                self.take(usize::try_from(length).ok()?)
            }
            _ => return None, // groups are long gone
        };
        Some((tag >> 3, value))
    }
}

// === impl FieldValue ===

impl<'a> FieldValue<'a> {
    pub(super) fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes { bytes, .. } => Some(bytes),
            Self::Number(_) | Self::Fixed => None,
        }
    }
}
