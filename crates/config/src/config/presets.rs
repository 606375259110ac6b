//! Presets: the keys of a gate for a provider or purpose, each in a file of config/presets/.
//!
//! A preset has the keys of a gate and of its classes, and these:
//! - `source`: the document that states its provider's limits, and the day it was read
//! - `published`, in a bucket: the provider's published limit. `rate` and `burst` are computed from
//!   it, unless the bucket has them: then they are for the whole limit. The gate takes a share of
//!   either
//! - `uncounted`: the bucket of calls that the provider does not count if it answers 304. With it
//!   the classes keep answers
//! - `http`: the keys with other values for `kind = "http"`
//! - `like`: the preset with the gate's other keys
//! - `of`, in a class: the preset with the classes for this place
//! - `hides_by_403`, in a class: true if a 403 may only mean that something is not there
//! - `serial_writes`, in a class: true if the provider takes its writes one at a time

mod figures;

use std::mem;
use std::num::NonZeroU32;

use serde::Deserialize;
use toml::{Table, Value};

use self::figures::{Figure, FigureSource, whole};
use super::cursor::{Cursor, TomlValue};
use super::layers::overlay;
use super::shape::Shape;
use super::values::one_of;
use crate::classify::ApiKind;
use crate::dialect::Dialect;
use crate::limit::policy::BucketPolicy;
use crate::spec;

/// The name of a preset, and the text of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PresetName {
    pub(super) word: &'static str,
    file: &'static str,
}

/// A preset, as read from its file.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Preset {
    #[serde(skip)]
    pub(super) word: &'static str,
    like: Option<String>,
    source: Option<FigureSource>,
    /// The cloud provider of the preset's API.
    #[serde(skip)]
    pub(super) dialect: Option<Dialect>,
    #[serde(default)]
    http: Table,
    uncounted: Option<Table>,
    #[serde(default)]
    pub(super) classes: Vec<PresetClass>,
    /// The gate's keys set by the preset.
    #[serde(flatten)]
    pub(super) gate: Table,
}

/// A class of a preset.
#[derive(Debug, Deserialize)]
pub(super) struct PresetClass {
    of: Option<String>,
    #[serde(skip)]
    source: Option<FigureSource>,
    #[serde(default)]
    pub(super) hides_by_403: bool,
    #[serde(default)]
    serial_writes: bool,
    #[serde(flatten)]
    pub(super) keys: Table,
}

/// Embeds the file of each preset in the program.
macro_rules! embed {
    ($($word:literal),+) => {
        const WORDS: &[&str] = &[$($word),+];

        impl PresetName {
            /// All presets; the first is the default.
            pub(super) const ALL: &[Self] = &[
                $(Self { word: $word, file: include_str!(concat!("../../presets/", $word, ".toml")) }),+
            ];
        }
    };
}

embed!(
    "sidecar",
    "client_go",
    "controller_runtime",
    "crossplane",
    "aws",
    "aws_ec2",
    "aws_elb",
    "aws_route53",
    "azure_arm",
    "gcp",
    "github",
    "none"
);

// === impl PresetName ===

impl PresetName {
    /// Returns the preset a gate names.
    pub(super) fn of(gate: &Cursor<'_>) -> Self {
        gate.text("preset").and_then(Self::named).unwrap_or(Self::ALL[0])
    }

    fn named(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|name| name.word == word)
    }

    /// Reads the file, with what it includes from other presets.
    pub(super) fn load(self) -> Preset {
        let mut preset = self.parse();
        if let Some(other) = preset.like.as_deref().and_then(Self::named) {
            let own = mem::replace(&mut preset.gate, other.parse().gate);
            preset.gate.remove("hosts");
            overlay(&mut preset.gate, own);
        }
        let word = preset.gate.get("dialect").and_then(Value::as_str);
        preset.dialect = Dialect::ALL.into_iter().find(|dialect| Some(dialect.word()) == word);
        preset
    }

    /// Reads the file. A mistake in it is found by a test and cannot reach a user.
    fn parse(self) -> Preset {
        let file: Preset = toml::from_str(self.file).unwrap_or_default();
        let classes = file.classes.into_iter().flat_map(|class| match class.of.as_deref().and_then(Self::named) {
            Some(other) => other.parse().classes,
            None => vec![PresetClass { source: file.source.clone(), ..class }],
        });
        Preset { word: self.word, classes: classes.collect(), ..file }
    }
}

// === impl Preset ===

impl Preset {
    /// Returns the share of its provider's limits to take by default.
    pub(super) fn share(&self) -> Option<f64> {
        self.gate.get("share").and_then(number)
    }

    /// Returns true if a class has `serial_writes`.
    pub(super) fn has_serial_writes(&self) -> bool {
        self.classes.iter().any(|class| class.serial_writes)
    }

    /// Adapts the preset to a gate of `kind`, and to `reconciles` per second if its numbers are
    /// computed from that.
    pub(super) fn fit(&mut self, kind: ApiKind, reconciles: NonZeroU32) {
        if kind == ApiKind::Http {
            overlay(&mut self.gate, mem::take(&mut self.http));
        }
        if self.gate.contains_key("max_reconcile_rate") {
            bucket_of(&mut self.gate).and_then(|bucket| take(bucket, reconciles.get().into(), 1));
            if let Some(Value::Table(slots)) = self.gate.get_mut("in_flight") {
                slots.insert("max".to_owned(), reconciles.get().into());
            }
        }
    }

    /// Computes the rates and bursts of the preset's buckets from a share of its provider's
    /// published limits. Returns these limits, if there are any.
    pub(super) fn take_share(&mut self, share: f64) -> Option<spec::Figures> {
        let dialect = self.dialect?;
        let source = self.source.as_ref();
        let of_gate = figure(&mut self.gate, None, share, dialect, source);
        let of_classes = self.classes.iter_mut().filter_map(|PresetClass { keys, source, .. }| {
            let name = keys.get("name").and_then(Value::as_str).map(str::to_owned);
            figure(keys, name, share, dialect, source.as_ref())
        });
        let figures = of_gate.into_iter().chain(of_classes).collect();
        Some(spec::Figures { preset: self.word, share, figures })
    }

    /// Returns the bucket bounding calls not counted because the answer is 304.
    pub(super) fn uncounted(&self, share: f64) -> Option<BucketPolicy> {
        let mut bucket = self.uncounted.clone()?;
        take(&mut bucket, share, 1);
        let burst = u32::try_from(bucket.get("burst")?.as_integer()?).ok()?;
        Some(BucketPolicy::new(bucket.get("rate")?.as_float()?, NonZeroU32::new(burst)?))
    }
}

fn bucket_of(table: &mut Table) -> Option<&mut Table> {
    table.get_mut("bucket")?.as_table_mut()
}

/// Computes the bucket of a gate or class from a share of its published limit, and returns that
/// limit in words.
fn figure(
    table: &mut Table,
    class: Option<String>,
    share: f64,
    dialect: Dialect,
    source: Option<&FigureSource>,
) -> Option<spec::Figure> {
    let most_cost = table.get("most_cost").and_then(Value::as_integer);
    let dearest = most_cost.and_then(|cost| u16::try_from(cost).ok()).unwrap_or(1);
    let bucket = bucket_of(table)?;
    let figure = take(bucket, share, dearest)?;
    let of = match (bucket.get("per").and_then(Value::as_str), dialect) {
        (Some("account"), Dialect::Aws) => " for each account and region",
        (Some("account"), Dialect::Azure) => " for each subscription",
        (Some("account"), Dialect::Google) => " for each project",
        (Some("account"), _) => " for each account",
        (Some("action"), _) => " for each account, region and action",
        _ => "",
    };
    let points = if dearest > 1 { format!(", of which a call costs up to {dearest}") } else { String::new() };
    Some(spec::Figure { class, says: format!("{figure}{of}{points}"), source: source?.to_string() })
}

/// Replaces the published limit in a bucket's table with the rate and burst for a share of it. A
/// call takes `dearest` tokens at most.
fn take(bucket: &mut Table, share: f64, dearest: u16) -> Option<Figure> {
    let figure = bucket.remove("published").and_then(|figure| figure.try_into::<Figure>().ok());
    let written = bucket.get("rate").and_then(number).zip(bucket.get("burst").and_then(number));
    let (rate, burst) = match (written, figure) {
        (Some((rate, burst)), _) => (rate * share, whole(burst * share).max(1)),
        (None, Some(figure)) => figure.held(share, dearest),
        (None, None) => return None,
    };
    bucket.insert("rate".to_owned(), rate.into());
    bucket.insert("burst".to_owned(), burst.into());
    figure
}

/// Returns a number, whole or not.
fn number(value: &Value) -> Option<f64> {
    value.clone().try_into().ok()
}

impl TomlValue for PresetName {
    const SHAPE: Shape = Shape::Word(WORDS);

    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
        one_of(Self::ALL, |name| name.word, value, at)
    }

    fn write(&self) -> Value {
        self.word.into()
    }
}

#[cfg(test)]
mod tests;
