//! A real browser, driven over Chromium's own protocol through two pipes. It reaches the network
//! through a proxy that writes down every request.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::command::PATIENCE;

/// A browser with one page open.
pub(crate) struct Browser {
    child: Child,
    orders: ChildStdin,
    messages: Receiver<Value>,
    sent: u64,
    page: String,
    /// The address of everything that the page has requested.
    pub(crate) asked: Vec<String>,
    _profile: tempfile::TempDir,
}

/// The properties of a screen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) phone: bool,
    pub(crate) dark: bool,
}

/// Lets a browser reach one address, and writes down what it requested.
#[derive(Clone, Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    seen: Arc<Mutex<Vec<String>>>,
}

// === impl Browser ===

impl Browser {
    /// Starts the browser. Everything that it or the page requests goes through the proxy.
    pub(crate) fn start(chromium: &Command, proxy: &Proxy) -> Self {
        let profile = tempfile::tempdir().expect("a folder");
        // Its ends of the pipes are to be 3 and 4.
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null"]).arg(chromium.get_program());
        for (name, value) in chromium.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        let mut child = command
            .args(["--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--no-default-browser-check", "--disable-extensions", "--disable-sync"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-domain-reliability"])
            .args(["--disable-features=OptimizationHints,MediaRouter,Translate", "--hide-scrollbars", "--mute-audio"])
            .args(["--force-color-profile=srgb", "--font-render-hinting=none", "--proxy-bypass-list=<-loopback>"])
            .arg(format!("--proxy-server=http://127.0.0.1:{}", proxy.port))
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .env("HOME", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh is there");
        let orders = child.stdin.take().expect("it is piped");
        let answers = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, messages) = channel();
        thread::spawn(move || {
            for message in answers.split(0).map_while(Result::ok) {
                let read = serde_json::from_slice(&message).expect("it speaks JSON");
                if sender.send(read).is_err() {
                    return;
                }
            }
        });
        let mut browser =
            Self { child, orders, messages, sent: 0, page: String::new(), asked: Vec::new(), _profile: profile };
        let target = browser.order("Target.createTarget", &json!({ "url": "about:blank" }));
        let attached = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.order("Target.attachToTarget", &attached);
        browser.page = session["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Network", "Runtime"] {
            browser.order(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    /// Sends a command, and waits for its result.
    pub(crate) fn order(&mut self, method: &str, parameters: &Value) -> Value {
        self.sent += 1;
        let mut order = json!({ "id": self.sent, "method": method, "params": parameters });
        if !self.page.is_empty() {
            order["sessionId"] = self.page.as_str().into();
        }
        self.orders.write_all(format!("{order}\0").as_bytes()).expect("it reads");
        let sent = self.sent;
        let answer = self.message(method, |message| message["id"] == sent);
        assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
        answer["result"].clone()
    }

    /// Returns the next message that `is_wanted` accepts.
    fn message(&mut self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.messages.recv_timeout(PATIENCE);
            let message = message.unwrap_or_else(|error| panic!("the browser is silent, {what} expected: {error}"));
            if message["method"] == "Network.requestWillBeSent" {
                self.asked.extend(message["params"]["request"]["url"].as_str().map(str::to_owned));
            }
            if is_wanted(&message) {
                return message;
            }
        }
    }

    /// Sets the screen from now on.
    pub(crate) fn screen(&mut self, screen: Screen) {
        let Screen { width, height, phone, dark } = screen;
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone });
        self.order("Emulation.setDeviceMetricsOverride", &metrics);
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.order("Emulation.setEmulatedMedia", &media);
    }

    /// Opens an address, and returns when the page is complete.
    pub(crate) fn open(&mut self, url: &str) {
        let opened = self.order("Page.navigate", &json!({ "url": url }));
        assert!(opened["errorText"].is_null(), "{url}: {opened}");
        self.loaded();
    }

    /// Returns when a page has been loaded.
    pub(crate) fn loaded(&mut self) {
        self.message("a page", |message| message["method"] == "Page.loadEventFired");
    }

    /// Evaluates a script, and waits if it returns a promise.
    pub(crate) fn evaluate(&mut self, script: &str) -> Value {
        let script = json!({ "expression": script, "awaitPromise": true, "returnByValue": true });
        let result = self.order("Runtime.evaluate", &script);
        assert!(result["exceptionDetails"].is_null(), "{result}");
        result["result"]["value"].clone()
    }

    /// A picture of the screen, as PNG.
    pub(crate) fn picture(&mut self) -> Vec<u8> {
        let picture = self.order("Page.captureScreenshot", &json!({ "format": "png", "optimizeForSpeed": false }));
        BASE64_STANDARD.decode(picture["data"].as_str().expect("a picture")).expect("base64")
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

// === impl Proxy ===

impl Proxy {
    /// Starts a proxy through which only `to` can be reached.
    pub(crate) fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let proxy = Self { port, seen: Arc::clone(&seen) };
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let seen = Arc::clone(&seen);
                // A browser that has left is no fault.
                thread::spawn(move || drop(pass(stream, to, &seen)));
            }
        });
        proxy
    }

    /// Method and address of every request.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().expect("nobody panicked").clone()
    }
}

/// Handles one request: passes it on if it is allowed.
fn pass(mut stream: TcpStream, to: SocketAddr, seen: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let (line, headers) = head.split_once("\r\n").unwrap_or_default();
    let wanted = line.strip_suffix(" HTTP/1.1").unwrap_or(line);
    seen.lock().expect("nobody panicked").push(wanted.to_owned());
    let Some(path) = wanted.strip_prefix(&format!("GET http://{to}")) else {
        return stream.write_all(b"HTTP/1.1 403 Not from here\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    };
    let headers: String = headers
        .split_inclusive("\r\n")
        .filter(|header| !header.to_ascii_lowercase().starts_with("proxy-connection") && !header.trim().is_empty())
        .collect();
    let mut server = TcpStream::connect(to)?;
    server.write_all(format!("GET {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n").as_bytes())?;
    std::io::copy(&mut server, &mut stream).map(drop)
}
