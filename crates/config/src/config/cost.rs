//! Reads the costs of calls, and checks that no call costs more than a bucket can hold.

use std::num::{NonZeroU16, NonZeroU32};

use toml::Value;

use super::cursor::{Cursor, TomlValue};
use super::shape::Shape;
use super::values::one_of;
use crate::classify::{ApiKind, CostBy, CostReader};
use crate::dialect::Dialect;
use crate::limit::policy::{BucketPolicy, Cost};
use crate::limit::words::Words;

words! {
    /// What a bucket counts.
    pub(super) enum Counts {
        /// Tokens: each call takes as many as its cost.
        Tokens = "tokens",
        /// Calls: each takes one token, whatever its cost.
        Calls = "calls",
    }
}

/// Reads the cost of a class's calls: how it is determined, and its least and largest value.
pub(super) fn cost(at: &Cursor<'_>, kind: ApiKind, dialect: Dialect) -> (CostBy, Cost) {
    let by = at.get("cost", CostBy::Number(1));
    let reader = match by {
        CostBy::Number(_) => None,
        CostBy::Read(reader) => Some(reader),
    };
    if let Some(reader) = reader
        && let Some(needed) = needed(reader, kind, dialect)
    {
        at.at("cost").problem(format!("is {:?}, which only works on a gate with {needed}", reader.word()));
    }
    let most = at.unused_if(reader.is_none(), "cost is a number, not read from the call", &at.at("cost"));
    let usual = NonZeroU16::new(reader.map_or(1, most_of)).unwrap_or(NonZeroU16::MIN);
    let most: NonZeroU32 = most.get("most_cost", usual.into());
    let most = u16::try_from(most.get()).unwrap_or_else(|_| {
        at.at("most_cost").problem(format!("is {most}, expected at most {}", u16::MAX));
        u16::MAX
    });
    match by {
        CostBy::Number(tokens) => (by, Cost::fixed(tokens)),
        CostBy::Read(_) => (by, Cost { least: 1, most }),
    }
}

/// Returns the setting required to read costs in this way, if the gate does not have it.
fn needed(reader: CostReader, kind: ApiKind, dialect: Dialect) -> Option<&'static str> {
    match reader {
        CostReader::List if kind != ApiKind::Kubernetes => Some("kind = \"kubernetes\""),
        CostReader::Graphql if dialect != Dialect::Github => Some("dialect = \"github\""),
        CostReader::Instances if dialect != Dialect::Aws => Some("dialect = \"aws\""),
        _ => None,
    }
}

/// Returns the default for the highest cost of a call.
///
/// It is kube-apiserver's most seats for a list, GitHub's points for a mutation, and for EC2 the
/// tokens of a request that starts 20 instances.
const fn most_of(reader: CostReader) -> u16 {
    match reader {
        CostReader::List => 10,
        CostReader::Graphql => 5,
        CostReader::Instances => 20,
    }
}

/// Records in a bucket the largest cost of one call, and reports costs above the bucket's burst.
/// `calls` has the costs of each class that takes its tokens, and the class's table, where problems
/// are reported.
pub(super) fn fit<'c, 'a: 'c>(
    bucket: &mut Option<BucketPolicy>,
    name: &str,
    calls: impl Iterator<Item = (Cost, &'c Cursor<'a>)>,
) {
    let Some(bucket) = bucket.as_mut().filter(|bucket| bucket.counts_costs) else { return };
    for (cost, at) in calls {
        if bucket.shared.is_some() && cost.most > 1 {
            at.at("cost").problem(format!(
                "charges {name}, which is shared with other gates and counts calls; expected counts = \"calls\" there"
            ));
        } else if u32::from(cost.most) > bucket.burst.get() {
            let most = cost.most;
            let burst = bucket.burst;
            let key = if cost.least == cost.most { "cost" } else { "most_cost" };
            at.at(key).problem(format!(
                "lets a call cost {most} tokens, more than the burst of {name}, which is {burst}, so the call would never be sent; \
                 expected at most {burst}, a larger burst, or counts = \"calls\" there"
            ));
        } else {
            bucket.largest_cost = bucket.largest_cost.max(NonZeroU16::new(cost.most).unwrap_or(NonZeroU16::MIN));
        }
    }
}

impl TomlValue for CostBy {
    const SHAPE: Shape = Shape::WholeOr(CostReader::WORDS);

    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
        match value {
            Value::Integer(number) => match u16::try_from(*number) {
                Ok(tokens) if tokens > 0 => Some(Self::Number(tokens)),
                _ => {
                    at.problem(format!(
                        "is {number}, expected 1 to {} tokens; for calls that cost nothing: lane = \"exempt\"",
                        u16::MAX
                    ));
                    None
                }
            },
            Value::String(_) => one_of(CostReader::WORDS, value, at).and_then(CostReader::named).map(Self::Read),
            _ => at.expect(None, value, "a number of tokens, or a word such as \"list\""),
        }
    }

    fn write(&self) -> Value {
        match self {
            Self::Number(tokens) => i64::from(*tokens).into(),
            Self::Read(reader) => reader.word().into(),
        }
    }
}
