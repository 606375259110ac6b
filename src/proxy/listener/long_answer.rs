//! Answers that last, such as watches: they are written without hyper, an optimisation.
//!
//! hyper keeps its buffers for as long as it has the connection, and a watch may be silent for
//! minutes. So an answer in chunks of which nothing has come for a while is taken from hyper. hyper
//! is told that the body has ended, the wire drops its last chunk, and hyper is let go as for a
//! rest. The connection's own task writes what comes from then on, and a new hyper begins with the
//! next call. The client sees nothing of it.
//!
//! No other part needs it. To take it out, let [`ActiveCall::may_outlast`] always be false.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame};
use tower_http::BoxError;

use super::wire::{ActiveCall, Gone, WireHandle};
use crate::proxy::stack::Sent;
use crate::upstream::{LAST_CHUNK, last_chunk};

/// An answer whose head and beginning hyper has written.
struct LongAnswer<'a> {
    body: Sent,
    handle: &'a WireHandle,
    call: ActiveCall,
    /// The part that has come and is not written, in chunks. A silent answer holds no buffer.
    chunks: Vec<u8>,
    /// The way in which the body has ended.
    end: Option<Result<(), BoxError>>,
}

/// Writes the rest of an answer, in chunks.
///
/// # Errors
/// The client has left, or the upstream broke off: the connection is of no more use.
pub(super) async fn write(handle: &WireHandle, rest: Sent) -> Result<(), BoxError> {
    let call = handle.begin();
    let mut answer = LongAnswer { body: rest, handle, call, chunks: Vec::new(), end: None };
    while answer.end.is_none() {
        poll_fn(|cx| answer.poll_fill(cx)).await;
        answer.call.give(answer.chunks.len());
        let mut written = 0;
        poll_fn(|cx| answer.poll_drain(&mut written, cx)).await?;
        answer.chunks = Vec::new();
    }
    answer.end.unwrap_or(Ok(()))
}

// === impl LongAnswer ===

impl LongAnswer<'_> {
    /// Takes what has come of the body, up to a record of TLS, or waits for something.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.end.is_none() && self.chunks.len() < RECORD {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => self.take(frame),
                Poll::Ready(Some(Err(error))) => self.end = Some(Err(error)),
                Poll::Ready(None) => self.finish(LAST_CHUNK),
                Poll::Pending if !self.chunks.is_empty() => break,
                Poll::Pending => {
                    ready!(self.call.poll_gone(cx));
                    self.end = Some(Err(Gone.into()));
                }
            }
        }
        Poll::Ready(())
    }

    fn take(&mut self, frame: Frame<Bytes>) {
        match frame.into_data() {
            Ok(data) if data.is_empty() => {} // as a chunk it would be the last
            Ok(data) => {
                self.chunks.reserve(data.len() + FRAMING);
                self.chunks.extend_from_slice(format!("{:X}\r\n", data.len()).as_bytes());
                self.chunks.extend_from_slice(&data);
                self.chunks.extend_from_slice(b"\r\n");
            }
            Err(frame) => self.finish(&frame.trailers_ref().map_or_else(|| LAST_CHUNK.to_vec(), last_chunk)),
        }
    }

    fn finish(&mut self, last_chunk: &[u8]) {
        self.chunks.extend_from_slice(last_chunk);
        self.end = Some(Ok(()));
    }

    /// Writes all that was taken, unless the client leaves.
    fn poll_drain(&mut self, written: &mut usize, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        loop {
            let left = self.chunks.get(*written..).unwrap_or_default();
            match self.handle.poll_write(cx, left) {
                Poll::Ready(Ok(0)) if left.is_empty() => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::Error::from(io::ErrorKind::WriteZero).into())),
                Poll::Ready(Ok(some)) => *written += some,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Pending => {
                    ready!(self.call.poll_gone(cx));
                    return Poll::Ready(Err(Gone.into()));
                }
            }
        }
    }
}

/// The most that is taken before it is written.
const RECORD: usize = 16 << 10;
/// The length of a chunk's size and line ends.
const FRAMING: usize = 16 + 4;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::clock::Clock;
    use crate::proxy::conservation;
    use crate::proxy::listener::Server;
    use crate::proxy::listener::connection::serve_calls;
    use crate::proxy::peer::Peer;
    use crate::proxy::stack;
    use crate::telemetry::CallLog;

    const WATCH: &str = "GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: localhost\r\n";
    const NEXT: &str = "GET /api/v1/pods HTTP/1.1\r\nHost: localhost\r\n\r\n";
    const HEAD: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

    /// A watch whose first event has come through.
    struct Watch {
        client: DuplexStream,
        upstream: TcpStream,
        listener: TcpListener,
        handle: WireHandle,
        served: JoinHandle<()>,
        server: Arc<Server>,
        clock: Clock,
    }

    impl Watch {
        async fn open(request: &str) -> Self {
            let clock = Clock::start();
            // Sockets are not in paused time, which would run on while bytes are on their way.
            tokio::spawn(async move {
                loop {
                    clock.sleep(Duration::from_millis(5)).await;
                }
            });
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let (log, _) = mpsc::channel(100);
            let mut options = conservation::options(1, listener.local_addr().expect("bound"), CallLog::to(log));
            options.upstream.connect_timeout = Duration::from_secs(3600);
            options.upstream.response_timeout = None;
            let server = Arc::new(conservation::server(options, clock).0);
            let (mut client, end) = duplex(4 << 10);
            let handle = WireHandle::new(Box::new(end), Arc::default(), Arc::default());
            let served = tokio::spawn({
                let (server, handle) = (Arc::clone(&server), handle.clone());
                async move {
                    let path = stack::stack(&server.parts, Peer::default());
                    serve_calls(&handle, path, &server.closing, "gate").await;
                }
            });
            client.write_all(request.as_bytes()).await.expect("room");
            let (mut upstream, _) = listener.accept().await.expect("a call");
            upstream.set_nodelay(true).expect("a socket");
            until(&mut upstream, "\r\n\r\n").await;
            upstream.write_all(format!("{HEAD}3\r\none\r\n").as_bytes()).await.expect("open");
            until(&mut client, "one").await;
            Self { client, upstream, listener, handle, served, server, clock }
        }

        /// Nothing happens for a second; true if hyper is gone after that.
        async fn rests(&self) -> bool {
            self.clock.sleep(Duration::from_secs(1)).await;
            self.handle.rests()
        }

        /// The upstream gets the next call, and answers it.
        async fn next(&mut self) {
            let mut got = Vec::new();
            while !got.ends_with(b"\r\n\r\n") {
                tokio::select! {
                    Ok((other, _)) = self.listener.accept() => (self.upstream, got) = (other, Vec::new()),
                    Ok(byte) = self.upstream.read_u8() => got.push(byte),
                }
            }
            self.say("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnext").await;
            assert!(until(&mut self.client, "next").await.starts_with("HTTP/1.1 200 OK\r\n"));
        }

        /// Reads until the gate closes the connection.
        async fn rest(self) -> String {
            let Self { mut client, handle, served, .. } = self;
            drop(handle);
            let mut got = String::new();
            client.read_to_string(&mut got).await.expect("no reset");
            served.await.expect("no panic");
            got
        }

        async fn say(&mut self, bytes: &str) {
            self.upstream.write_all(bytes.as_bytes()).await.expect("open");
        }
    }

    /// Reads until there is something that ends like this, and returns it.
    async fn until(from: &mut (impl AsyncRead + Unpin), end: &str) -> String {
        let mut got = Vec::new();
        while !got.ends_with(end.as_bytes()) {
            let byte = from.read_u8().await;
            got.extend(byte.as_ref().ok());
            assert!(byte.is_ok(), "no {end:?} after {:?}", String::from_utf8_lossy(&got));
        }
        String::from_utf8(got).expect("text")
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_later_comes_as_it_would_have_and_the_next_call_is_answered() {
        let mut watch = Watch::open(&format!("{WATCH}\r\n")).await;
        assert_eq!(until(&mut watch.client, "\r\n").await, "\r\n");
        for event in ["two", "three"] {
            assert!(watch.rests().await, "hyper is let go");
            watch.say(&format!("{:x}\r\n{event}\r\n", event.len())).await;
            assert_eq!(
                until(&mut watch.client, &format!("{event}\r\n")).await,
                format!("{:X}\r\n{event}\r\n", event.len())
            );
        }
        let long = "x".repeat(100_000);
        let end = format!("{:x}\r\n{long}\r\n0\r\n\r\n", long.len());
        let (said, came) =
            tokio::join!(watch.upstream.write_all(end.as_bytes()), until(&mut watch.client, "\r\n0\r\n\r\n"));
        said.expect("open");
        let body = came.split("\r\n").filter(|line| line.starts_with('x'));
        assert_eq!(body.collect::<String>(), long);

        watch.client.write_all(NEXT.as_bytes()).await.expect("open");
        watch.next().await;
        drop(watch.client);
        watch.served.await.expect("no panic");
    }

    #[tokio::test(start_paused = true)]
    async fn trailers_end_it() {
        let mut watch = Watch::open(&format!("{WATCH}\r\n")).await;
        assert!(watch.rests().await);
        watch.say("0\r\nX-Sum: 7\r\nContent-Length: 9\r\n\r\n").await;
        assert_eq!(until(&mut watch.client, "\r\n\r\n").await, "\r\n0\r\nx-sum: 7\r\n\r\n");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_breaks_off_is_cut_after_all_that_came() {
        let mut watch = Watch::open(&format!("{WATCH}\r\n")).await;
        assert!(watch.rests().await);
        watch.say("3\r\ntwo\r\n5\r\nhal").await;
        watch.upstream.shutdown().await.expect("open");
        let came = watch.rest().await;
        assert!(came.starts_with("\r\n3\r\ntwo\r\n") && !came.contains("0\r\n\r\n"), "{came:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_leaves_is_noticed_whether_it_reads_or_not() {
        for size in [0, 1_000_000] {
            let mut watch = Watch::open(&format!("{WATCH}\r\n")).await;
            assert!(watch.rests().await);
            let writing = tokio::spawn(async move {
                let event = format!("{size:x}\r\n{}\r\n", "x".repeat(size));
                if size > 0 {
                    watch.upstream.write_all(event.as_bytes()).await.ok();
                }
                let mut room = Vec::new();
                watch.upstream.read_to_end(&mut room).await.ok();
            });
            watch.clock.sleep(Duration::from_secs(1)).await;
            drop(watch.client);
            watch.served.await.expect("no panic");
            writing.await.expect("the call upstream ended");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_to_close_closes() {
        let mut watch = Watch::open(&format!("{WATCH}Connection: close\r\n\r\n")).await;
        watch.clock.sleep(Duration::from_secs(1)).await;
        watch.say("3\r\ntwo\r\n0\r\n\r\n").await;
        assert_eq!(watch.rest().await, "\r\n3\r\ntwo\r\n0\r\n\r\n");

        let mut watch = Watch::open(&format!("{WATCH}\r\n")).await;
        assert!(watch.rests().await);
        watch.server.closing.tell().await;
        watch.clock.sleep(Duration::from_secs(1)).await;
        watch.say("3\r\ntwo\r\n0\r\n\r\n").await;
        assert_eq!(watch.rest().await, "\r\n3\r\ntwo\r\n0\r\n\r\n");
    }

    #[tokio::test(start_paused = true)]
    async fn one_to_a_client_of_http_1_0_stays_with_hyper() {
        let mut watch = Watch::open(&format!("{}\r\n", WATCH.replace("HTTP/1.1", "HTTP/1.0"))).await;
        assert!(!watch.rests().await);
        watch.say("3\r\ntwo\r\n0\r\n\r\n").await;
        watch.upstream.shutdown().await.expect("open");
        assert_eq!(watch.rest().await, "two");
    }

    /// hyper may still have a part of the request.
    #[tokio::test(start_paused = true)]
    async fn one_to_a_request_with_a_body_stays_with_hyper() {
        let request = "POST /api/v1/pods HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi";
        let mut watch = Watch::open(request).await;
        assert!(!watch.rests().await);
        watch.say("3\r\ntwo\r\n0\r\n\r\n").await;
        assert_eq!(until(&mut watch.client, "0\r\n\r\n").await, "\r\n3\r\ntwo\r\n0\r\n\r\n");
    }

    /// hyper has the next request already, or a part of it, and must be there to answer it.
    #[tokio::test(start_paused = true)]
    async fn no_request_is_lost_that_comes_before_the_end() {
        for (ahead, amid) in [(NEXT.len(), 0), (10, NEXT.len() - 10), (0, 10), (0, NEXT.len())] {
            let (before, after) = NEXT.split_at(ahead);
            let (amid, after) = after.split_at(amid);
            let mut watch = Watch::open(&format!("{WATCH}\r\n{before}")).await;
            assert_eq!(watch.rests().await, ahead == 0, "{ahead}");
            watch.client.write_all(amid.as_bytes()).await.expect("open");
            watch.clock.sleep(Duration::from_secs(1)).await;
            watch.say("3\r\ntwo\r\n0\r\n\r\n").await;
            assert_eq!(until(&mut watch.client, "0\r\n\r\n").await, "\r\n3\r\ntwo\r\n0\r\n\r\n");
            watch.client.write_all(after.as_bytes()).await.expect("open");
            watch.next().await;
        }
    }
}
