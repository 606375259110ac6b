//! Clusters that are slow or broken, and clusters whose gate is replaced.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc as channel;
use std::thread;

use http::uri::Scheme;
use tokio::sync::mpsc;

use super::*;
use crate::proxy::conservation;
use crate::spec::Listen;
use crate::telemetry::CallLog;

fn nowhere() -> OpenCluster {
    let target = Target {
        scheme: Scheme::HTTP,
        authority: "127.0.0.1:9".parse().expect("an authority"),
        base_path: String::new(),
        server_name: None,
        proxy: None,
    };
    OpenCluster { target, tls: None, injector: Injector::pass_through(), warnings: Vec::new() }
}

fn clusters<const N: usize>(all: [(&str, HubCluster); N]) -> HubClusters {
    let clusters = all.map(|(name, cluster)| (name.into(), cluster)).into();
    HubClusters { clusters, ..HubClusters::default() }
}

async fn start(clusters: HubClusters) -> (Gate, Arc<Hub>) {
    let (log, _) = mpsc::channel(1);
    let mut options = conservation::options(1, ([127, 0, 0, 1], 9).into(), CallLog::to(log));
    options.gate.listen = vec![Listen::Tcp(([127, 0, 0, 1], 0).into())];
    let started = Hub::start(options, clusters, Past::default(), Clock::start(), CancellationToken::new());
    started.await.expect("a port")
}

#[tokio::test(start_paused = true)]
async fn broken_files_are_read_once_a_second_on_no_thread_of_calls() {
    let (reads, calls) = (Arc::new(AtomicUsize::new(0)), thread::current().id());
    let counted = Arc::clone(&reads);
    let broken = HubCluster::new(1, None, move || {
        assert_ne!(thread::current().id(), calls);
        counted.fetch_add(1, Ordering::Relaxed);
        Err("no such key".to_owned())
    });
    let (gate, hub) = start(clusters([("broken", broken)])).await;
    for second in 1..4 {
        let all = futures_util::future::join_all((0..9).map(|_| hub.carrier("/c/broken/api"))).await;
        assert!(all.into_iter().all(|found| found.is_err_and(|why| why.to_string().ends_with("called: no such key"))));
        assert_eq!(reads.load(Ordering::Relaxed), second);
        gate.section.clock.sleep(REMEMBERED).await;
    }
}

#[tokio::test]
async fn a_caller_that_leaves_does_not_begin_slow_files_again() {
    let (reads, (release, wait)) = (Arc::new(AtomicUsize::new(0)), channel::channel::<()>());
    let (counted, wait) = (Arc::clone(&reads), Mutex::new(wait));
    let slow = HubCluster::new(1, None, move || {
        counted.fetch_add(1, Ordering::Relaxed);
        lock(&wait).recv().ok();
        Ok(nowhere())
    });
    let (_gate, hub) = start(clusters([("slow", slow), ("fast", HubCluster::new(1, None, || Ok(nowhere())))])).await;
    for _ in 0..9 {
        let leaves = tokio::select! {
            biased;
            _ = hub.carrier("/c/slow/api") => false,
            found = hub.carrier("/c/fast/api") => found.is_ok(),
        };
        assert!(leaves, "the slow cluster holds up no other");
    }
    tokio::time::pause();
    let (late, ()) = tokio::join!(hub.carrier("/c/slow/api"), tokio::time::advance(READ_WITHIN + REMEMBERED));
    assert!(late.is_err_and(|why| why.to_string().ends_with(LATE)));
    tokio::time::resume();
    drop(release);
    assert!(hub.carrier("/c/slow/api").await.is_ok());
    assert_eq!(reads.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_takeover_holds_up_no_other_cluster() {
    let of = |version| HubCluster::new(version, None, || Ok(nowhere()));
    let (gate, hub) = start(clusters([("a", of(1)), ("b", of(1))])).await;
    let (before, _) = hub.carrier("/c/a/").await.expect("a cluster");
    hub.adopt(clusters([("a", of(2)), ("b", of(1))]));
    gate.section.clock.sleep(Duration::from_millis(1)).await; // its tasks have begun to wait
    // Its memory cannot be read for now.
    let ((holds, held), (release, wait)) = (channel::channel(), channel::channel::<()>());
    let parts = Arc::clone(before.own());
    let holder = thread::spawn(move || {
        parts.driver.look(|_, _| {
            holds.send(()).ok();
            wait.recv_timeout(PATIENCE)
        })
    });
    held.recv().expect("it is held");
    let takes_over = tokio::spawn({
        let hub = Arc::clone(&hub);
        async move { hub.carrier("/c/a/").await.map(|(gate, _)| gate) }
    });
    tokio::task::yield_now().await;
    assert!(hub.carrier("/c/b/").await.is_ok() && !takes_over.is_finished());
    release.send(()).expect("it is not over");
    holder.join().expect("no panic").expect("in time");
    let after = takes_over.await.expect("no panic").expect("a cluster");
    assert!(!Arc::ptr_eq(&before, &after));
}

/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(60);
