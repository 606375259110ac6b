//! The scripted API: HTTP/1.1 without TLS, or HTTP/2 with it. Leases are known by their path, as
//! everywhere.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tidegate::clock::Clock;
use tidegate::tls;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::dice::Dice;
use crate::weather::{Sky, Weather};

type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// The API's address, and the CA to trust.
pub(crate) struct Api {
    pub(crate) address: SocketAddr,
    pub(crate) ca: Option<String>,
}

struct Script {
    dice: Dice,
    sky: Arc<Sky>,
    clock: Clock,
}

pub(crate) async fn start(dice: Dice, sky: Arc<Sky>, by_tls: bool) -> Api {
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = socket.local_addr().expect("bound");
    let listener = by_tls.then(|| Arc::new(tls::self_signed(&[], &[], None).expect("made")));
    let ca = listener.as_ref().map(|listener| listener.ca().to_string());
    let script = Arc::new(Script { dice, sky, clock: Clock::start() });
    tokio::spawn(async move {
        while let Ok((stream, _)) = socket.accept().await {
            stream.set_nodelay(true).expect("a socket");
            if script.sky.now() == Weather::Gone {
                continue;
            }
            tokio::spawn(serve(stream, listener.clone(), Arc::clone(&script)));
        }
    });
    Api { address, ca }
}

async fn serve(stream: TcpStream, listener: Option<Arc<tls::Listener>>, script: Arc<Script>) {
    // A call may end the connection under all others.
    let cut = Arc::new(Notify::new());
    let service = service_fn({
        let cut = Arc::clone(&cut);
        move |request| {
            let (script, cut) = (Arc::clone(&script), Arc::clone(&cut));
            async move { script.answer(request, &cut).await }
        }
    });
    match listener {
        None => {
            let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::select! { _ = serving => {}, () = cut.notified() => {} }
        }
        Some(listener) => {
            let acceptor = tokio_rustls::TlsAcceptor::from(listener.config());
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let mut http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            http2.timer(TokioTimer::new()).max_concurrent_streams(20);
            let serving = http2.serve_connection(TokioIo::new(stream), service);
            tokio::select! { _ = serving => {}, () = cut.notified() => {} }
        }
    }
}

impl Script {
    async fn answer(&self, request: Request<Incoming>, cut: &Notify) -> Result<Answer, hyper::Error> {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch"));
        let is_list = request.uri().path().ends_with("/configmaps");
        request.into_body().collect().await?;
        self.sky.answered.fetch_add(1, Ordering::Relaxed);
        let weather = self.sky.now();
        match weather {
            Weather::Calm => {}
            Weather::Slow => self.clock.sleep(Duration::from_millis(self.dice.below(333))).await,
            Weather::Stalled => self.sky.passes(Weather::Stalled).await,
            Weather::Failing if self.dice.one_in(3) => {
                return Ok(status(if self.dice.one_in(2) { 500 } else { 503 }, b"it does not work"));
            }
            Weather::Throttling => {
                let mut answer = status(429, b"too many");
                answer.headers_mut().insert("retry-after", http::HeaderValue::from_static("1"));
                return Ok(answer);
            }
            Weather::Cutting if self.dice.one_in(3) => return Ok(broken()),
            Weather::Gone => {
                cut.notify_one();
                std::future::pending::<()>().await;
            }
            Weather::Failing | Weather::Cutting => {}
        }
        if is_watch {
            return Ok(self.watch());
        }
        Ok(status(200, if is_list { &LIST } else { b"{\"kind\":\"ConfigMap\"}" }))
    }

    /// A watch with an event now and then, and a random end.
    fn watch(&self) -> Answer {
        let (clock, dice) = (self.clock, self.dice.child());
        let events = stream::unfold((), move |()| {
            let (rest, ends) = (Duration::from_millis(20 + dice.below(300)), dice.one_in(30));
            async move {
                clock.sleep(rest).await;
                (!ends).then(|| (Ok(Frame::data(Bytes::from_static(b"{\"type\":\"MODIFIED\"}\n"))), ()))
            }
        });
        Response::new(StreamBody::new(events.boxed()).boxed_unsync())
    }
}

fn status(status: u16, body: &'static [u8]) -> Answer {
    let body = Full::from(body).map_err(|never: Infallible| match never {}).boxed_unsync();
    Response::builder().status(status).body(body).expect("valid")
}

/// A body that breaks off.
fn broken() -> Answer {
    let half = Ok(Frame::data(Bytes::from_static(b"{\"kind\":\"Config")));
    let body = stream::iter([half, Err(io::ErrorKind::ConnectionReset.into())]);
    Response::new(StreamBody::new(body.boxed()).boxed_unsync())
}

/// A quarter of a mebibyte.
static LIST: [u8; 1 << 18] = [b'x'; 1 << 18];
