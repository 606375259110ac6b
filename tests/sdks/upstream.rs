//! A stand-in for the providers: the least that each SDK takes for an answer, and every way to
//! fail.

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::wire::Head;

/// An upstream; it lives as long as the process.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub(crate) port: u16,
    /// The port's socket while the upstream is closed: it refuses connections, and no other program
    /// gets the port.
    closed: Arc<Mutex<Option<Socket>>>,
    state: Arc<(Mutex<State>, Condvar)>,
}

struct State {
    mode: Mode,
    /// The requests that are held back.
    held: usize,
    /// All that came.
    came: usize,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It is answered.
    Answer,
    /// It gets no answer before the mode changes.
    Hold,
    /// It is answered 500.
    Fail,
    /// It is answered 429 with `Retry-After: 4`.
    Throttle,
    /// Its connection is closed.
    Close,
}

// === impl Upstream ===

impl Upstream {
    /// Starts one that answers.
    pub(crate) fn start() -> Self {
        let upstream = Self::closed();
        upstream.open();
        upstream
    }

    /// An upstream that no connection can be made to before it is opened.
    pub(crate) fn closed() -> Self {
        let state = State { mode: Mode::Answer, held: 0, came: 0 };
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
        let port = socket.local_addr().ok().and_then(|address| address.as_socket()).expect("it is bound").port();
        let closed = Arc::new(Mutex::new(Some(socket)));
        Self { port, closed, state: Arc::new((Mutex::new(state), Condvar::new())) }
    }

    pub(crate) fn open(&self) {
        let Some(socket) = self.closed.lock().expect("no panic").take() else { return };
        socket.listen(128).expect("the port is ours");
        let listener = TcpListener::from(socket);
        let upstream = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let upstream = upstream.clone();
                thread::spawn(move || upstream.serve(&stream));
            }
        });
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Changes what becomes of requests, those that are held back too.
    pub(crate) fn set(&self, mode: Mode) {
        self.state.0.lock().expect("no panic").mode = mode;
        self.state.1.notify_all();
    }

    /// The number of requests that are held back now.
    pub(crate) fn held(&self) -> usize {
        self.state.0.lock().expect("no panic").held
    }

    /// The number of requests that came.
    pub(crate) fn came(&self) -> usize {
        self.state.0.lock().expect("no panic").came
    }

    /// Returns what becomes of a request that has come, once that is settled.
    fn mode(&self) -> Mode {
        let mut state = self.state.0.lock().expect("no panic");
        state.came += 1;
        if state.mode == Mode::Hold {
            state.held += 1;
            // A call that nothing releases is a fault of the test, and must not outlive it.
            let longest = Duration::from_secs(150);
            state =
                self.state.1.wait_timeout_while(state, longest, |state| state.mode == Mode::Hold).expect("no panic").0;
            state.held -= 1;
        }
        state.mode
    }

    /// Answers the requests of one connection until it ends.
    fn serve(&self, stream: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream);
        loop {
            let request = Head::read(&mut reader)?;
            if request.field("expect").is_some() {
                (&mut &*stream).write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
            }
            let mut body = Vec::new();
            request.request_body(&mut reader, &mut |piece| body.extend(piece))?;
            let more = match self.mode() {
                Mode::Answer | Mode::Hold => "200 OK\r\n",
                Mode::Fail => "500 Internal Server Error\r\n",
                Mode::Throttle => "429 Too Many Requests\r\nRetry-After: 4\r\n",
                Mode::Close => return None,
            };
            let (kind, text) = match more {
                "200 OK\r\n" => answer(&request, &String::from_utf8_lossy(&body)),
                _ => ("text/plain", ""),
            };
            let head = format!("HTTP/1.1 {more}Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n", text.len());
            let text = if request.target().0 == "HEAD" { "" } else { text };
            (&mut &*stream).write_all([head.as_str(), text].concat().as_bytes()).ok()?;
        }
    }
}

/// The answer to a request, by its method and path, its `X-Amz-Target` and its form.
pub(crate) fn answer(request: &Head, body: &str) -> (&'static str, &'static str) {
    let (method, path) = request.target();
    let json = "application/json";
    match path {
        _ if request.field("x-amz-target").is_some_and(|target| target.ends_with("ListTables")) => {
            ("application/x-amz-json-1.0", "{\"TableNames\":[]}")
        }
        _ if body.contains("Action=DescribeInstances") => ("text/xml", DESCRIBED),
        _ if body.contains("Action=CreateTags") => ("text/xml", TAGGED),
        _ if body.contains("Action=GetCallerIdentity") => ("text/xml", STS),
        _ if path.ends_with("/rrset") || path.ends_with("/rrset/") => ("text/xml", CHANGED),
        _ if path.starts_with("/2013-04-01/hostedzone") => ("text/xml", ROUTE_53),
        _ if path.starts_with("/clusters/") => (json, "{\"cluster\":{\"name\":\"c\"}}"),
        _ if path.starts_with("/users/") => (json, "{\"login\":\"x\",\"id\":1,\"url\":\"\"}"),
        _ if path.contains("/contents/") => (json, "{\"content\":{},\"commit\":{}}"),
        _ if path.starts_with("/repos/") => (json, "{\"id\":1,\"number\":1,\"title\":\"t\",\"url\":\"\"}"),
        _ if path.starts_with("/upload/storage/") => {
            (json, "{\"kind\":\"storage#object\",\"name\":\"o\",\"bucket\":\"b\"}")
        }
        _ if path.starts_with("/storage/") && method == "POST" => {
            (json, "{\"kind\":\"storage#bucket\",\"name\":\"b\"}")
        }
        _ if path.starts_with("/storage/") => (json, "{\"kind\":\"storage#buckets\",\"items\":[]}"),
        _ if path.starts_with("/v1/servers") => (json, SERVERS),
        _ if path.starts_with("/v2/droplets") => (json, "{\"droplets\":[],\"links\":{},\"meta\":{\"total\":0}}"),
        _ if path.starts_with("/client/v4/zones") => (json, ZONES),
        _ if path.starts_with("/subscriptions/") => (json, "{\"value\":[]}"),
        _ if method == "PUT" && path.starts_with("/bucket/") => ("application/octet-stream", ""),
        _ => ("application/octet-stream", "data"),
    }
}

const DESCRIBED: &str = "<DescribeInstancesResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">\
                         <requestId>r</requestId><reservationSet/></DescribeInstancesResponse>";
const TAGGED: &str = "<CreateTagsResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">\
                      <requestId>r</requestId><return>true</return></CreateTagsResponse>";
const CHANGED: &str = "<ChangeResourceRecordSetsResponse xmlns=\"https://route53.amazonaws.com/doc/2013-04-01/\"><ChangeInfo>\
                       <Id>/change/C1</Id><Status>PENDING</Status><SubmittedAt>2026-11-23T00:00:00Z</SubmittedAt></ChangeInfo>\
                       </ChangeResourceRecordSetsResponse>";
const SERVERS: &str = "{\"servers\":[],\"meta\":{\"pagination\":{\"page\":1,\"per_page\":25,\"previous_page\":null,\
                       \"next_page\":null,\"last_page\":1,\"total_entries\":0}}}";
const ZONES: &str = "{\"success\":true,\"errors\":[],\"messages\":[],\"result\":[],\
                     \"result_info\":{\"page\":1,\"per_page\":20,\"total_pages\":0,\"count\":0,\"total_count\":0}}";
const STS: &str = "<GetCallerIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><GetCallerIdentityResult>\
                   <Arn>a</Arn><UserId>u</UserId><Account>1</Account></GetCallerIdentityResult></GetCallerIdentityResponse>";
const ROUTE_53: &str = "<ListHostedZonesResponse xmlns=\"https://route53.amazonaws.com/doc/2013-04-01/\"><HostedZones/>\
                        <IsTruncated>false</IsTruncated><MaxItems>100</MaxItems></ListHostedZonesResponse>";
