//! Reads `key = [...]`: the parts of a call to make its key from.

use toml::Value;

use super::cursor::{Cursor, TomlValue};
use super::problems::did_you_mean;
use super::shape::{Shape, describe};
use crate::classify::{KeyPart, KeyPartError, KeyParts, KeyPartsError};

impl TomlValue for KeyParts {
    const SHAPE: Shape = Shape::Any;

    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
        let items = at.expect(value.as_array(), value, "a list such as [\"verb\", \"path\"]")?;
        let parts: Vec<Option<KeyPart>> =
            items.iter().enumerate().map(|(index, item)| key_part(item, &at.item(index))).collect();
        match Self::new(parts.into_iter().collect::<Option<_>>()?) {
            Ok(parts) => return Some(parts),
            Err(error @ KeyPartsError::Twice { index }) => at.item(index).problem(error.to_string()),
            Err(error @ KeyPartsError::Empty) => at.problem(error.to_string()),
        }
        None
    }

    fn write(&self) -> Value {
        self.parts().iter().map(ToString::to_string).collect::<Vec<_>>().write()
    }
}

fn key_part(item: &Value, at: &Cursor<'_>) -> Option<KeyPart> {
    let text = at.expect(item.as_str(), item, "text in quotes")?;
    let part = text.parse();
    if let Err(error) = &part {
        let near = if *error == KeyPartError::Unknown { did_you_mean(text, &KEY_PARTS) } else { String::new() };
        at.problem(format!("is {}, {error}{near}", describe(item)));
    }
    part.ok()
}

const KEY_PARTS: [&str; 5] = ["verb", "path", "query:NAME", "header:NAME", "body"];
