//! Enums with a word for each value, used in configuration, metrics, logs and status.

/// An enum with a word for each value, used in configuration, metrics, logs and status.
pub trait Words: Copy + 'static {
    /// The words, in the order of the values.
    const WORDS: &'static [&'static str];

    /// Returns the value with this word.
    fn named(word: &str) -> Option<Self>;
}

/// Declares enums with `ALL` (their values in order), `word`, and `Display` by that word.
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    ($($(#[$of_enum:meta])* $vis:vis enum $name:ident { $($(#[$of_value:meta])* $value:ident = $word:literal,)+ })+) => {$(
        $(#[$of_enum])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis enum $name { $($(#[$of_value])* $value,)+ }

        impl $name {
            /// All values, in the order of their declaration.
            $vis const ALL: [Self; [$($word),+].len()] = [$(Self::$value),+];

            /// Returns the value's word.
            $vis const fn word(self) -> &'static str {
                match self { $(Self::$value => $word),+ }
            }

            /// Returns the value with this word.
            $vis fn named(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$value),)+ _ => None }
            }
        }

        impl $crate::words::Words for $name {
            const WORDS: &'static [&'static str] = &[$($word),+];

            fn named(word: &str) -> Option<Self> {
                Self::named(word)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }
    )+};
}
