//! What stands between an SDK and its gate: it passes every byte on, notes when each request came
//! and what it was told, and lets a test act before the SDK sees an answer.

use std::collections::VecDeque;
use std::io::{BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::fetched::now;
use crate::wire::Head;

/// A relay to one gate; it lives as long as the process.
#[derive(Clone)]
pub(crate) struct Relay {
    pub(crate) port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    gate: u16,
    exchanges: Mutex<Vec<Exchange>>,
    hook: Mutex<Option<Hook>>,
    before: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

/// A request, and its answer once that has come.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) arrived: Instant,
    pub(crate) request: Head,
    /// The request's bytes, head and body.
    pub(crate) bytes: Vec<u8>,
    pub(crate) answer: Option<(Instant, Head)>,
}

/// Is called with every answer, and all exchanges so far, before the SDK gets it.
pub(crate) type Hook = Box<dyn FnMut(&[Exchange]) + Send>;

// === impl Exchange ===

impl Exchange {
    /// The reason of the gate's refusal.
    pub(crate) fn refusal(&self) -> Option<&str> {
        self.answer.as_ref()?.1.field("tidegate-refusal")
    }

    pub(crate) fn status(&self) -> u16 {
        self.answer.as_ref().map_or(0, |(_, head)| head.status())
    }

    /// The time for which the answer asks, in the form that is read.
    pub(crate) fn told(&self) -> Option<Duration> {
        let (_, head) = self.answer.as_ref()?;
        let millis = head.field("x-amz-retry-after").and_then(|millis| millis.parse().ok()).map(Duration::from_millis);
        millis.or_else(|| head.field("retry-after")?.parse().ok().map(Duration::from_secs))
    }
}

// === impl Relay ===

impl Relay {
    pub(crate) fn start(gate: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let port = listener.local_addr().expect("it listens").port();
        let shared =
            Arc::new(Shared { gate, exchanges: Mutex::default(), hook: Mutex::default(), before: Mutex::default() });
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                thread::spawn(move || shared.connect(&client));
            }
        });
        Self { port, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Calls `hook` from now on. Returns and forgets what came so far.
    pub(crate) fn watch(&self, hook: Hook) -> Vec<Exchange> {
        *self.shared.hook.lock().expect("no panic") = Some(hook);
        std::mem::take(&mut *self.shared.exchanges.lock().expect("no panic"))
    }

    /// Calls this once, when the next request has come and before the gate gets it.
    pub(crate) fn before_the_next(&self, act: impl FnOnce() + Send + 'static) {
        *self.shared.before.lock().expect("no panic") = Some(Box::new(act));
    }

    pub(crate) fn exchanges(&self) -> Vec<Exchange> {
        self.shared.exchanges.lock().expect("no panic").clone()
    }
}

impl Shared {
    /// Passes one connection on until either side ends it.
    fn connect(&self, client: &TcpStream) -> Option<()> {
        let gate = TcpStream::connect(("127.0.0.1", self.gate)).ok()?;
        for stream in [client, &gate] {
            stream.set_nodelay(true).ok()?;
        }
        let asked = Mutex::new(VecDeque::new());
        thread::scope(|scope| {
            scope.spawn(|| {
                let ended = self.requests(client, &gate, &asked);
                drop(gate.shutdown(Shutdown::Write)); // it may have ended already
                ended
            });
            self.answers(client, &gate, &asked);
            drop(client.shutdown(Shutdown::Both));
        });
        Some(())
    }

    fn requests(&self, client: &TcpStream, mut gate: &TcpStream, asked: &Mutex<VecDeque<usize>>) -> Option<()> {
        let mut reader = BufReader::new(client);
        loop {
            let request = Head::read(&mut reader)?;
            let act = self.before.lock().expect("no panic").take();
            act.into_iter().for_each(|act| act());
            let bytes = request.bytes.clone();
            let index = {
                let mut exchanges = self.exchanges.lock().expect("no panic");
                exchanges.push(Exchange { arrived: now(), request: request.clone(), bytes, answer: None });
                exchanges.len() - 1
            };
            asked.lock().expect("no panic").push_back(index);
            gate.write_all(&request.bytes).ok()?;
            let mut written = Ok(());
            request.request_body(&mut reader, &mut |piece| {
                if let Some(exchange) = self.exchanges.lock().expect("no panic").get_mut(index) {
                    exchange.bytes.extend(piece);
                }
                written = written.and_then(|()| gate.write_all(piece).map_err(drop));
            })?;
            written.ok()?;
        }
    }

    fn answers(&self, mut client: &TcpStream, gate: &TcpStream, asked: &Mutex<VecDeque<usize>>) -> Option<()> {
        let mut reader = BufReader::new(gate);
        loop {
            let answer = Head::read(&mut reader)?;
            let is_last = answer.status() >= 200;
            let index = {
                let mut asked = asked.lock().expect("no panic");
                if is_last { asked.pop_front()? } else { *asked.front()? }
            };
            let mut method = String::new();
            if is_last {
                let mut exchanges = self.exchanges.lock().expect("no panic");
                if let Some(exchange) = exchanges.get_mut(index) {
                    exchange.answer = Some((now(), answer.clone()));
                    exchange.request.target().0.clone_into(&mut method);
                }
                let known = exchanges.clone();
                drop(exchanges);
                if let Some(hook) = &mut *self.hook.lock().expect("no panic") {
                    hook(&known);
                }
            }
            client.write_all(&answer.bytes).ok()?;
            let mut written = Ok(());
            let more = answer.response_body(&method, &mut reader, &mut |piece| {
                written = written.and_then(|()| client.write_all(piece).map_err(drop));
            });
            more?;
            written.ok()?;
        }
    }
}
