//! The driver's hand-over: every call that may go wakes, even if other calls leave, whatever the
//! pool does, on any number of threads.

use std::future::poll_fn;
use std::num::NonZeroU32;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::mpsc;

use super::*;
use crate::limit::policy::{BucketPolicy, InFlight, QueuePolicy, SharedId, SharedPolicy};
use crate::limit::{ClassId, Flow, Ledger, Policy};

fn policy(in_flight: u32, bucket: Option<(f64, u32)>) -> Policy {
    let some = |number| NonZeroU32::new(number).expect("some");
    Policy {
        bucket: bucket.map(|(rate, burst)| BucketPolicy::new(rate, some(burst))),
        queue: QueuePolicy {
            max_wait: Duration::from_secs(3600),
            max_waiting: 100_000,
            max_waiting_bytes: 1 << 20,
            ..QueuePolicy::default()
        },
        in_flight: Some(InFlight::new(some(in_flight))),
        ..Policy::default()
    }
}

fn driver(policy: Policy) -> Driver {
    let clock = Clock::start();
    Driver::new("tested".into(), Limiter::new(policy, 1, clock.now()), 0, Stores::default(), clock)
}

fn arrive(driver: &Driver, flow: u64) -> Verdict {
    let arrival = Arrival::new(ClassId(0), Flow { id: flow, name: &flow });
    driver.arrive(0, &arrival).expect("there was no reload")
}

async fn turn(mut place: HeldTicket) -> Result<HeldPermit, Option<Refusal>> {
    poll_fn(|cx| place.poll_turn(cx)).await
}

fn waits(entry: Verdict) -> HeldTicket {
    match entry {
        Verdict::Wait(place) => place,
        Verdict::Go(_) => panic!("it went"),
        Verdict::Refused(refusal) => panic!("{refusal:?}"),
    }
}

fn goes(turn: Result<HeldPermit, Option<Refusal>>) -> HeldPermit {
    match turn {
        Ok(permit) => permit,
        Err(Some(refusal)) => panic!("{refusal:?}"),
        Err(None) => panic!("unconnected"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_ticker_wakes_a_waiter_when_its_token_is_there_and_not_before() {
    let driver = driver(policy(100, Some((2.0, 1))));
    driver.rooms().add_room(Group::Short, 100);
    let stop = CancellationToken::new();
    tokio::spawn(driver.clone().tick(stop.clone(), || ()));
    let Verdict::Go(first) = arrive(&driver, 1) else { panic!("the bucket is full") };
    let began = driver.clock().now();
    let sent = first.admit(());
    let second = goes(turn(waits(arrive(&driver, 1))).await);
    let waited = second.claimed - began;
    assert!((Duration::from_millis(498)..Duration::from_millis(502)).contains(&waited), "{waited:?}");
    drop((sent, second));
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_is_dropped_gives_its_token_back_and_the_next_goes() {
    let driver = driver(policy(100, Some((0.000_001, 1))));
    driver.rooms().add_room(Group::Short, 1);
    let Verdict::Go(first) = arrive(&driver, 1) else { panic!("the bucket is full") };
    let level = |driver: &Driver| driver.look(|limiter, now| limiter.snapshot(now).buckets[0].level);
    assert!(level(&driver) < 0.5);
    drop(first);
    assert!(level(&driver) > 0.5);
    assert!(matches!(arrive(&driver, 1), Verdict::Go(_)));
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_an_unreachable_group_is_told_at_once() {
    let driver = driver(policy(100, None));
    let waiting = tokio::spawn(turn(waits(arrive(&driver, 1))));
    tokio::task::yield_now().await;
    driver.rooms().unreachable(Group::Short);
    assert!(matches!(waiting.await.expect("no panic"), Err(None)));
    assert_eq!(driver.remembered(), 0);
}

/// Tells the task that opens streams how many are wanted.
fn tells(wanted: mpsc::UnboundedSender<usize>) -> impl Fn(Group, usize) + Send + Sync {
    move |group, calls| {
        assert_eq!(group, Group::Short);
        wanted.send(calls).ok();
    }
}

const STREAMS: i64 = 3;

/// Opens a stream whenever one is wanted and there may be one more; as a level, until nobody wants
/// any.
async fn open_streams(driver: Driver, open: Arc<AtomicI64>, mut wanted: mpsc::UnboundedReceiver<usize>) {
    let rooms = driver.rooms();
    let mut level = 0;
    loop {
        tokio::select! {
            biased;
            news = wanted.recv() => match news {
                Some(calls) => level = calls,
                None => return,
            },
            () = tokio::task::yield_now(), if level > 0 => {
                if open.fetch_add(1, Ordering::SeqCst) < STREAMS {
                    rooms.add_room(Group::Short, 1);
                } else {
                    open.fetch_sub(1, Ordering::SeqCst);
                }
            }
        }
    }
}

/// One call: waits, sometimes leaves or is not sent, else goes and gives back what it had. Says
/// whether it was sent.
async fn call(driver: Driver, open: Arc<AtomicI64>, dice: u64) -> bool {
    let place = match arrive(&driver, dice % 5) {
        Verdict::Go(permit) => return send(&driver, permit, &open, dice).await,
        Verdict::Wait(place) => place,
        Verdict::Refused(refusal) => panic!("{refusal:?}"),
    };
    if dice.is_multiple_of(7) {
        let mut place = place;
        for _ in 0..dice % 3 {
            // It has been asked for and may have been granted when it leaves.
            let polled = poll_fn(|cx| Poll::Ready(place.poll_turn(cx))).await;
            if let Poll::Ready(turn) = polled {
                return send(&driver, goes(turn), &open, dice).await;
            }
            tokio::task::yield_now().await;
        }
        return false;
    }
    let permit = goes(turn(place).await);
    send(&driver, permit, &open, dice).await
}

async fn send(driver: &Driver, permit: HeldPermit, open: &AtomicI64, dice: u64) -> bool {
    if dice.is_multiple_of(11) {
        drop(permit);
        return false;
    }
    let permit = if dice.is_multiple_of(13) {
        // Its stream died between the grant and now, and with it the room that the grant took.
        open.fetch_sub(1, Ordering::SeqCst);
        goes(turn(permit.requeue()).await)
    } else {
        permit
    };
    let (_, owed, slot) = permit.admit(());
    tokio::task::yield_now().await;
    owed.finish(Answer::new(crate::api::Outcome::Success, Some(200)), None, &String::new);
    drop(slot);
    if dice.is_multiple_of(3) {
        open.fetch_sub(1, Ordering::SeqCst);
    } else {
        driver.rooms().add_room(Group::Short, 1);
    }
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_many_threads_everyone_gets_a_turn_and_nobody_keeps_anything() {
    for round in 0..20 {
        let driver = driver(policy(2, None));
        let (wanted, news) = mpsc::unbounded_channel();
        driver.connect(tells(wanted));
        let open = Arc::new(AtomicI64::new(0));
        let pool = tokio::spawn(open_streams(driver.clone(), Arc::clone(&open), news));
        let dice = AtomicU64::new(round * 1_000);
        let calls: Vec<_> = (0..300)
            .map(|_| tokio::spawn(call(driver.clone(), Arc::clone(&open), dice.fetch_add(1, Ordering::Relaxed) + 1)))
            .collect();
        let mut sent = 0;
        for call in calls {
            let done = tokio::time::timeout(Duration::from_secs(30), call).await;
            sent +=
                usize::from(done.unwrap_or_else(|_| panic!("round {round}: somebody sleeps on")).expect("no panic"));
        }
        assert!(sent > 200, "round {round}: {sent}");
        // Stopped, it is not between opening a stream and saying so.
        pool.abort();
        pool.await.expect_err("it would open streams for ever");
        let rest = driver.look(|limiter, now| limiter.snapshot(now));
        assert_eq!((rest.waiting, rest.slots.used), (0, 0), "round {round}");
        assert_eq!(driver.remembered(), 0, "round {round}");
        assert_eq!(rest.rooms[1].1, open.load(Ordering::SeqCst), "round {round}: room is what is open and free");
    }
}

/// The same story under the model checker, small enough for it to try many schedules.
#[test]
fn under_every_schedule_tried_everyone_gets_a_turn_and_nobody_keeps_anything() {
    interleave::under_schedules(2_000, || {
        let driver = driver(policy(2, None));
        let (wanted, news) = mpsc::unbounded_channel();
        driver.connect(tells(wanted));
        let open = Arc::new(AtomicI64::new(0));
        let pool = shuttle::future::spawn(open_streams(driver.clone(), Arc::clone(&open), news));
        // One that leaves, one whose stream dies under it, and four whose streams die with them, so
        // that each wants a new one.
        let calls: Vec<_> = [7, 13, 3, 6, 9, 12]
            .map(|dice| shuttle::future::spawn(call(driver.clone(), Arc::clone(&open), dice)))
            .into_iter()
            .collect();
        shuttle::future::block_on(async {
            for call in calls {
                call.await.expect("no panic");
            }
        });
        let rest = driver.look(|limiter, now| limiter.snapshot(now));
        assert_eq!((rest.waiting, rest.slots.used, driver.remembered()), (0, 0, 0));
        pool.abort();
    });
}

#[tokio::test(start_paused = true)]
async fn p13_gates_that_share_a_bucket_send_its_rate_together_and_in_order() {
    let clock = Clock::start();
    let stores = Stores::new({
        let ledger = Mutex::new(Ledger::default());
        move |asks, done| {
            let (now, mut ledger) = (clock.now().as_nanos() / 1000 + 1, ledger.lock().expect("unpoisoned"));
            done(asks.iter().map(|ask| Ok(ledger.ask(ask, now))).collect());
        }
    });
    let left = Arc::new(Mutex::new(Vec::new()));
    let drivers: Vec<Driver> = (1..=2)
        .map(|seed| {
            let mut policy = policy(1_000, Some((10.0, 5)));
            policy.bucket = policy.bucket.map(|bucket| BucketPolicy { shared: Some(SharedId(0)), ..bucket });
            policy.shared = vec![Arc::new(SharedPolicy::new("account"))];
            let limiter = Limiter::new(policy, seed, clock.now());
            let driver = Driver::new("sharing".into(), limiter, 0, stores.clone(), clock);
            driver.rooms().add_room(Group::Short, 1_000);
            tokio::spawn(driver.clone().tick(CancellationToken::new(), || ()));
            driver
        })
        .collect();
    for (gate, driver) in drivers.iter().enumerate() {
        for number in 0..100 {
            let (mut place, left) = (waits(arrive(driver, 0)), Arc::clone(&left));
            tokio::spawn(async move {
                let permit = poll_fn(|cx| place.poll_turn(cx)).await.expect("nothing refuses it");
                left.lock().expect("unpoisoned").push((gate, number));
                let (_, _, slot) = permit.admit(());
                drop(slot);
            });
        }
    }
    clock.sleep(Duration::from_secs(10)).await;
    let left = left.lock().expect("unpoisoned").clone();
    assert!((97..=105).contains(&left.len()), "{} calls in ten seconds at 10/s burst 5", left.len());
    for gate in 0..2 {
        let of_gate: Vec<_> = left.iter().filter(|(of, _)| *of == gate).map(|(_, number)| *number).collect();
        assert!(of_gate.len() >= 40, "each gets its part: {}", of_gate.len());
        assert!(of_gate.is_sorted(), "first come, first served: {of_gate:?}");
    }
}
