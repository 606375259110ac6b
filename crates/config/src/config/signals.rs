//! Reads how a gate reacts to the rate-limit signals in an upstream's responses.

use std::time::Duration;

use toml::Value;

use super::cursor::{Cursor, TomlValue};
use super::problems::alternatives;
use super::shape::Shape;
use crate::api::{PausePolicy, Scope, Signal, Signals};
use crate::classify::ApiKind;
use crate::limit::quota::QuotaKind;

/// Reads the table `signals`: the signals to obey, and how long to pause.
pub(super) fn throttling(at: &Cursor<'_>, kind: ApiKind) -> PausePolicy {
    let honour = at.get("honour", [Signal::RetryAfter].into_iter().collect::<Signals>());
    let scope = at.get("scope", Scope::Key);
    let max_pause = at.get("max_pause", MAX_PAUSE);
    let reserve = at.get("reserve", 0.0);
    if at.has("reserve") {
        check_reserve(reserve, honour, scope, at);
    }
    let quota = at.get("quota", QuotaKind::default());
    let pace = at.get("pace", false);
    PausePolicy { kubernetes: kind == ApiKind::Kubernetes, honour, scope, max_pause, reserve, quota, pace }
}

/// Reports a useless `reserve`: no obeyed signal tells how much of a quota remains.
fn check_reserve(reserve: f64, honour: Signals, scope: Scope, signals: &Cursor<'_>) {
    let at = signals.at("reserve");
    let telling = |signal: &Signal| signal.tells_quota();
    if !(0.0..1.0).contains(&reserve) {
        at.problem(format!("is {reserve:?}, expected a fraction from 0 to less than 1"));
    } else if reserve > 0.0 && scope == Scope::Key {
        at.given(&[&signals.at("scope")]).problem(
            "has no effect with scope = \"key\": a quota is for all keys together; expected scope \"class\", \"credential\" or \"gate\"",
        );
    } else if reserve > 0.0 && !honour.iter().any(|signal| telling(&signal)) {
        let telling: Vec<&str> = Signal::ALL.into_iter().filter(telling).map(Signal::word).collect();
        at.given(&[&signals.at("honour")]).problem(format!(
            "has no effect: no signal in `honour` says what is left of a quota; expected {}",
            alternatives(&telling)
        ));
    }
}

impl TomlValue for Signals {
    const SHAPE: Shape = Vec::<Signal>::SHAPE;

    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
        Vec::<Signal>::read(value, at).map(|signals| signals.into_iter().collect())
    }

    fn write(&self) -> Value {
        self.iter().collect::<Vec<_>>().write()
    }
}

const MAX_PAUSE: Duration = Duration::from_secs(15 * 60);
