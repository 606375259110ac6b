//! The macro that declares enums whose values have a word and a sentence each.

/// Declares an enum whose values have a word each, for metrics, and a sentence, which `Display`
/// shows.
macro_rules! sentences {
    ($(#[$of_enum:meta])* $vis:vis enum $name:ident { $($(#[$of_value:meta])* $value:ident = $word:literal: $sentence:literal,)+ }) => {
        $(#[$of_enum])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
        $vis enum $name { $($(#[$of_value])* #[error($sentence)] $value,)+ }

        impl $name {
            /// Returns the word for it.
            $vis const fn word(self) -> &'static str {
                match self { $(Self::$value => $word),+ }
            }
        }
    };
}
