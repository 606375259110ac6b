//! The script and the ledger answer alike.

use super::*;
use crate::limit::PauseNotice;
use crate::limit::quota::{QuotaId, ResourceId};

/// A small generator, so that a failing run can be run again.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

#[tokio::test]
async fn the_script_and_the_ledger_agree_on_ten_thousand_random_asks() {
    for program in programs() {
        agree_on(&Server::start_program(&program, &[])).await;
    }
}

async fn agree_on(server: &Server) {
    let mut connection = dialer(server.store()).dial().await.expect("it takes connections");
    let mut dice = Dice(20_261_123);
    for bucket in 0..20 {
        let mut ledger = Ledger::default();
        let mut known = [(0, 0); 6];
        let mut all: Vec<(Ask, (u64, StoreAnswer), StoreAnswer)> = Vec::new();
        for _ in 0..500 {
            let ask = random(&mut dice, bucket, &known);
            let (now, answer) = asker("t").ask_at(&mut connection.redis, &ask).await.expect("it answers");
            let expected = ledger.ask(&ask, now);
            all.push((ask.clone(), (now, answer.clone()), expected.clone()));
            if answer != expected {
                let last = &all[all.len().saturating_sub(3)..];
                panic!("the script and the ledger differ: {last:#?}\n{ledger:#?}");
            }
            let member = usize::try_from(ask.member).expect("small");
            if dice.below(5) > 0 {
                known[member] = (ask.total + u64::from(answer.granted), answer.epoch);
            }
        }
    }
}

#[tokio::test]
async fn members_were_seen_before_a_clock_that_has_gone_back() {
    for program in programs() {
        let server = Server::start_program(&program, &[]);
        let mut connection = dialer(server.store()).dial().await.expect("it takes connections");
        let mut ask_of = async |member, total, epoch| {
            let ask = Ask { total, epoch, ..ask(member, 1) };
            asker("t").ask_at(&mut connection.redis, &ask).await.expect("it answers")
        };
        let (_, first) = ask_of(1, 0, 0).await;
        let (_, second) = ask_of(2, 0, 0).await;
        assert_eq!((first.members, second.members), (1, 2));

        // What it has written is from an hour after what its clock says.
        let text = async |words: &[&str]| redis::from_redis_value::<String>(server.run(words).await).expect("text");
        let key = "t:1:{account}";
        let later = |number: &str| (number.parse::<u64>().expect("a number") + HOUR).to_string();
        for name in ["m:1", "m:2"] {
            let value = text(&["HGET", key, name]).await;
            let moved = value.split(' ').enumerate().map(|(place, word)| match place {
                1 | 2 => later(word),
                _ => word.to_owned(),
            });
            server.run(&["HSET", key, name, &moved.collect::<Vec<_>>().join(" ")]).await;
        }
        let before = text(&["HGET", key, "m:1"]).await;
        for name in ["z", "n"] {
            let value = text(&["HGET", key, name]).await;
            let whole = value.split('.').next().unwrap_or_default();
            server.run(&["HSET", key, name, &later(whole)]).await;
        }
        let last = text(&["HGET", key, "n"]).await.parse::<u64>().expect("a number");
        let (now, _) = ask_of(2, 1, second.epoch).await;
        let back = last - now;
        let moved = text(&["HGET", key, "m:1"]).await;
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (place, (before, after)) in words(&before).iter().zip(&words(&moved)).enumerate() {
            let number = |text: &str| text.parse::<u64>().expect("a number");
            match place {
                1 | 2 => assert_eq!(number(after), number(before) - back, "{before} {after} {back}"),
                _ => assert_eq!(before, after),
            }
        }
    }
}

fn notice(quota: QuotaId, micros: u64) -> PauseNotice {
    PauseNotice { quota, left: Duration::from_micros(micros) }
}

/// In microseconds.
const HOUR: u64 = 3_600_000_000;

fn random(dice: &mut Dice, bucket: u64, known: &[(u64, u64); 6]) -> Ask {
    let member = dice.below(6);
    let (total, epoch) = known[usize::try_from(member).expect("small")];
    let rate = [10.0, 50.0, 1_000.0, 9_999.0, 33.3][usize::try_from(bucket % 5).expect("small")];
    let burst = u32::try_from(1 + dice.below(200)).expect("small");
    let policy = BucketPolicy::new(rate, std::num::NonZeroU32::new(burst).expect("not zero"));
    let mut shared = SharedPolicy::new(&format!("bucket-{bucket}"));
    shared.weight = std::num::NonZeroU32::new(1 + u32::try_from(dice.below(5)).expect("small")).expect("not zero");
    let small = |dice: &mut Dice, end: u64| u32::try_from(dice.below(end)).expect("small");
    Ask {
        limits: SharedLimits::new(&policy, &shared),
        shared: Arc::new(shared),
        member,
        wish: Wish {
            need: if dice.below(4) == 0 { 0 } else { small(dice, 60) },
            extra: if dice.below(2) == 0 { 0 } else { small(dice, 65) },
            within: Duration::from_micros(dice.below(9_000_000)),
        },
        total: if dice.below(9) == 0 { dice.below(1_000) } else { total },
        epoch: if dice.below(9) == 0 { 0 } else { epoch },
        ahead: if dice.below(3) > 0 { 0 } else { small(dice, 10) },
        away: dice.below(12) == 0,
        pause: match dice.below(200) {
            0..5 => Some(notice(QuotaId::ALL, 1 + dice.below(20_000))),
            5 => Some(notice(QuotaId::ALL, 0)),
            6..80 => {
                let quota = QuotaId { holder: dice.below(2), resource: ResourceId(1 + dice.below(100)) };
                Some(notice(quota, 1 + dice.below(20_000_000)))
            }
            _ => None,
        },
        left: (dice.below(6) == 0).then(|| small(dice, 250)),
        leave: dice.below(15) == 0,
        ..ask(member, 0)
    }
}
