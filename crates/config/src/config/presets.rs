//! Presets: the keys of a gate for a provider or purpose, each in a file of config/presets/.
//!
//! A preset has the keys of a gate and of its classes, and these:
//! - `source`, also in a class: the document that states its provider's limits, and the day it was
//!   read
//! - `published`, in a bucket: the provider's published limit. `rate` and `burst` are computed from
//!   it, unless the bucket has them: then they are for the whole limit. The gate takes a share of
//!   either
//! - `uncounted`: calls that the provider never counts, by `methods` and `paths`
//! - `unchanged`: the bucket of calls that the provider does not count if it answers 304. With it
//!   the classes keep answers
//! - `tried`: how the preset was tried, for its document
//! - `http`: the keys with other values for `kind = "http"`
//! - `like`: the preset with the gate's other keys
//! - `of`, in a class: the preset with the classes to use instead
//! - `hides_by_403`, in a class: true if a 403 may only mean that something is not there
//! - `serial_writes`, in a class: true if the provider takes its writes one at a time

mod figures;
mod user;

use std::collections::BTreeMap;
use std::mem;
use std::num::NonZeroU32;

use serde::Deserialize;
use toml::{Table, Value};

use self::figures::{Figure, FigureSource, whole};
pub use self::user::named as preset_files;
use super::cursor::{Cursor, TomlValue};
use super::layers::overlay;
use super::shape::Shape;
use super::values::one_of;
use crate::api::Signals;
use crate::classify::{ApiKind, Matcher, PatternList};
use crate::dialect::Dialect;
use crate::limit::policy::BucketPolicy;
use crate::spec;

/// A preset embedded in the program.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedPreset {
    /// The name, as in `preset = "NAME"`.
    pub name: &'static str,
    /// The text of its file.
    pub text: &'static str,
}

/// The preset of a gate: the name of an embedded one, or the path of a user's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PresetName(String);

/// A preset, as read from its file.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Preset {
    #[serde(skip)]
    pub(super) word: String,
    like: Option<String>,
    source: Option<FigureSource>,
    /// The cloud provider of the preset's API.
    #[serde(skip)]
    pub(super) dialect: Option<Dialect>,
    #[serde(default)]
    http: Table,
    #[serde(default)]
    uncounted: Vec<BTreeMap<String, Vec<String>>>,
    unchanged: Option<Table>,
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
    ($($name:literal)+) => {
        const NAMES: &[&str] = &[$($name),+];

        /// The embedded presets; the first is the default.
        pub const PRESETS: &[EmbeddedPreset] = &[
            $(EmbeddedPreset { name: $name, text: include_str!(concat!("../../presets/", $name, ".toml")) }),+
        ];
    };
}

embed! {
    "sidecar" "client_go" "controller_runtime" "crossplane" "aws" "aws_ec2" "aws_elb" "aws_lambda" "aws_route53"
    "aws_ses" "azure_arm" "cloudflare" "digitalocean" "docker" "gcp" "github" "gitlab" "hetzner" "letsencrypt"
    "none" "okta"
}

// === impl EmbeddedPreset ===

impl EmbeddedPreset {
    /// Returns the preset with this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        PRESETS.iter().copied().find(|preset| preset.name == name)
    }

    /// Reads the file, with what it includes from other presets.
    pub(super) fn load(self) -> Preset {
        self.parse().completed(self.name)
    }

    /// Reads the file alone. A mistake in it is found by a test and cannot reach a user.
    fn parse(self) -> Preset {
        toml::from_str(self.text).unwrap_or_default()
    }
}

// === impl PresetName ===

impl PresetName {
    /// Returns the preset named by a gate, or else the default.
    pub(super) fn of(gate: &Cursor<'_>) -> Self {
        Self(gate.text("preset").unwrap_or(NAMES[0]).to_owned())
    }

    /// Reads the preset; `at` is the gate, and `read` reads one.
    pub(super) fn load(&self, at: &Cursor<'_>, read: &dyn Fn(&Cursor<'_>)) -> Preset {
        match EmbeddedPreset::named(&self.0) {
            Some(embedded) => embedded.load(),
            None if is_path(&self.0) => user::load(&self.0, at, read),
            None => PRESETS[0].load(),
        }
    }
}

/// Returns true for the path of a user's file.
fn is_path(word: &str) -> bool {
    word.contains('/') || word.ends_with(".toml")
}

// === impl Preset ===

impl Preset {
    /// Adds what the preset includes from embedded ones.
    fn completed(mut self, word: &str) -> Self {
        if let Some(other) = self.like.as_deref().and_then(EmbeddedPreset::named) {
            let own = mem::replace(&mut self.gate, other.parse().gate);
            self.gate.remove("hosts");
            overlay(&mut self.gate, own);
        }
        self.gate.remove("tried");
        let text = |key: &str| self.gate.get(key).and_then(Value::as_str);
        let is_http = text("kind") == Some(ApiKind::Http.word());
        let dialect = text("dialect").and_then(Dialect::named).or_else(|| is_http.then_some(Dialect::Plain));
        let classes = mem::take(&mut self.classes).into_iter().flat_map(|class| match class.included() {
            Some(other) => other.load().classes,
            None => vec![PresetClass { source: class.source.or_else(|| self.source.clone()), ..class }],
        });
        Self { word: word.to_owned(), dialect, classes: classes.collect(), ..self }
    }

    /// Returns the share of its provider's limits to take by default.
    pub(super) fn share(&self) -> Option<f64> {
        self.gate.get("share").and_then(number).or_else(|| self.dialect.map(|_| 1.0))
    }

    /// Returns true if a class of the preset has `serial_writes`.
    pub(super) fn has_serial_writes(&self) -> bool {
        self.classes.iter().any(|class| class.serial_writes)
    }

    /// Adapts the preset to a gate of `kind`. In a preset with `max_reconcile_rate`, also computes
    /// the limits for `reconciles` per second.
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

    /// Computes the buckets of the preset from `share`, a fraction of its provider's published
    /// limits. Returns the published limits, if there are any.
    pub(super) fn take_share(&mut self, share: f64) -> Option<spec::Figures> {
        let of_gate = figure(&mut self.gate, None, share, self.source.as_ref());
        let of_classes = self.classes.iter_mut().filter_map(|PresetClass { keys, source, .. }| {
            let name = keys.get("name").and_then(Value::as_str).map(str::to_owned);
            figure(keys, name, share, source.as_ref())
        });
        let figures: Vec<spec::Figure> = of_gate.into_iter().chain(of_classes).collect();
        let preset = self.word.clone();
        (self.dialect.is_some() || !figures.is_empty()).then_some(spec::Figures { preset, share, figures })
    }

    /// Returns the bucket bounding calls not counted because the answer is 304.
    pub(super) fn unchanged(&self, share: f64) -> Option<BucketPolicy> {
        let mut bucket = self.unchanged.clone()?;
        take(&mut bucket, share, 1);
        let burst = u32::try_from(bucket.get("burst")?.as_integer()?).ok()?;
        Some(BucketPolicy::new(bucket.get("rate")?.as_float()?, NonZeroU32::new(burst)?))
    }
}

// === impl PresetClass ===

impl PresetClass {
    /// Returns the preset named by `of`, to take its classes from.
    fn included(&self) -> Option<EmbeddedPreset> {
        self.of.as_deref().and_then(EmbeddedPreset::named)
    }
}

/// Returns the calls of a gate that are never counted, by its preset, or by those named after its
/// dialect and signals.
pub(super) fn uncounted(preset: &Preset, dialect: Dialect, honour: Signals) -> Vec<Matcher> {
    let words = honour.iter().map(|signal| signal.word()).chain([dialect.word()]);
    let named = words.filter(|word| *word != preset.word).filter_map(EmbeddedPreset::named);
    let calls = named.flat_map(|named| named.parse().uncounted).chain(preset.uncounted.iter().cloned());
    let matcher = |mut calls: BTreeMap<String, Vec<String>>| {
        let with =
            |matcher: Matcher, list: PatternList| matcher.with(list, calls.remove(list.word()).unwrap_or_default());
        [PatternList::Methods, PatternList::Paths].into_iter().fold(Matcher::default(), with)
    };
    calls.map(matcher).collect()
}

fn bucket_of(table: &mut Table) -> Option<&mut Table> {
    table.get_mut("bucket")?.as_table_mut()
}

/// Computes the bucket of a gate or class from a share of its published limit, and returns that
/// limit in words.
fn figure(table: &mut Table, class: Option<String>, share: f64, source: Option<&FigureSource>) -> Option<spec::Figure> {
    let most_cost = table.get("most_cost").and_then(Value::as_integer);
    let dearest = most_cost.and_then(|cost| u16::try_from(cost).ok()).unwrap_or(1);
    let figure = take(bucket_of(table)?, share, dearest)?;
    let points = if dearest > 1 { format!(", of which a call costs up to {dearest}") } else { String::new() };
    let source = source?;
    Some(spec::Figure { class, says: format!("{figure} for each {}{points}", source.each), source: source.to_string() })
}

/// Replaces `published` in a bucket's table by `rate` and `burst`, for a `share` of that limit. A
/// call takes at most `dearest` tokens.
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

/// Returns an integer or a float as a float.
fn number(value: &Value) -> Option<f64> {
    value.clone().try_into().ok()
}

impl TomlValue for EmbeddedPreset {
    const SHAPE: Shape = Shape::Word(NAMES);

    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
        one_of(NAMES, value, at).and_then(Self::named)
    }

    fn write(&self) -> Value {
        self.name.into()
    }
}

impl TomlValue for PresetName {
    const SHAPE: Shape = Shape::WordOrFile(NAMES);

    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
        let path = value.as_str().filter(|text| is_path(text));
        path.or_else(|| Some(EmbeddedPreset::read(value, at)?.name)).map(|word| Self(word.to_owned()))
    }

    fn write(&self) -> Value {
        self.0.clone().into()
    }
}

#[cfg(test)]
mod tests;
