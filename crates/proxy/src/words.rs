//! A macro for enums whose values have a word and a sentence.

/// Declares an enum. Each value has a word, for metrics, and a sentence, for `Display`.
macro_rules! sentences {
    ($(#[$of_enum:meta])* $vis:vis enum $name:ident { $($(#[$of_value:meta])* $value:ident = $word:literal: $sentence:literal,)+ }) => {
        $(#[$of_enum])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
        $vis enum $name { $($(#[$of_value])* #[error($sentence)] $value,)+ }

        impl $name {
            /// Returns the word of the value.
            $vis const fn word(self) -> &'static str {
                match self { $(Self::$value => $word),+ }
            }
        }
    };
}
