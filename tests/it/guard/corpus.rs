//! Requests as bytes, good, bad and odd, and random mutations of them.

/// Each entry is everything that one client sends.
pub(super) const CORPUS: &[&str] = &[
    "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /api/v1/namespaces/d/pods?labelSelector=a%3Db&limit=500 HTTP/1.1\r\nHost: localhost:8001\r\nAccept: application/json, */*\r\nUser-Agent: controller/v1\r\nAuthorization: Bearer x\r\n\r\n",
    "POST /api/v1/namespaces/d/configmaps HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 24\r\n\r\n{\"metadata\":{\"name\":\"a\"}}",
    "PUT /apis/apps/v1/namespaces/d/deployments/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n",
    "PUT /a HTTP/1.1\r\nHost: localhost\r\nTrailer: X-Sum\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\nX-Other: 2\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabcGET /b HTTP/1.1\r\nHost: localhost\r\n\r\nDELETE /c HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
    "\r\n\r\nGET /after-empty-lines HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /old HTTP/1.0\r\nHost: localhost\r\n\r\n",
    "GET /old HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\nGET /older HTTP/1.0\r\nHost: localhost\r\n\r\n",
    "HEAD /a HTTP/1.1\r\nHost: 127.0.0.1\r\nIf-None-Match: \"x\"\r\nConnection: close\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET http://localhost/absolute?a=b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET http://localhost?a=b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET http://127.0.0.1/two-names HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "PATCH /a HTTP/1.1\r\nHost: [::1]:8001\r\nContent-Type: application/merge-patch+json\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n{}",
    "GET /exec HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\nGET /behind HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /h2c HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
    "GET /a HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, X-Own\r\nX-Own: gone\r\nX-Other: stays\r\n\r\n",
    "GET /values HTTP/1.1\r\nHost: localhost\r\nX: \t a\tb \t\r\nX:\r\nX: b\r\nCookie: a=b\r\nImpersonate-User: u\r\nImpersonate-Group: g\r\nImpersonate-Group: h\r\n\r\n",
    "GET /latin HTTP/1.1\r\nHost: localhost\r\nX: \u{e9}\u{80}\r\n\r\n",
    "GET /p%61th/%2e%2e/../x//y;z?q=%00%zz&a=/../b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /{}|\"\\^ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "POST /empty HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\n\r\n",
    "GET /with-body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc",
    "M-SEARCH /a HTTP/1.1\r\nHost: localhost\r\n\r\n",
    // requests that are turned away
    "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nX",
    "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: +1\r\n\r\nx",
    "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1, 1\r\n\r\nx",
    "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
    "GET /a HTTP/1.1\nHost: localhost\n\n",
    "GET /a HTTP/1.1\r\nHost: localhost\r\nX-A: 1\r\n 2\r\n\r\n",
    "GET /a HTTP/1.1\r\nHost: localhost\r\nX-A : 1\r\n\r\n",
    "GET /a HTTP/1.1\r\nHost: localhost\r\nX: a\x01b\r\n\r\n",
    "GET /a#/../b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /a HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
    "GET /a HTTP/1.1\r\n\r\n",
    "GET foo HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET 1http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /old HTTP/1.0\r\nHost: localhost\r\nConnection: x\r\nConnection: keep-alive\r\n\r\nGET /older HTTP/1.0\r\nHost: localhost\r\n\r\n",
    "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300\r\n\r\nabc",
];

/// Pieces that mutations put into requests.
const PIECES: &[&str] = &[
    "\r\n",
    "\n",
    "\r",
    " ",
    "\t",
    ":",
    ",",
    ";",
    "/",
    "?",
    "#",
    "%",
    "*",
    "\0",
    "\x0b",
    "\x7f",
    "\u{e9}",
    "0",
    "1",
    "f",
    "+",
    "-",
    "\"",
    "\r\n\r\n",
    "HTTP/1.1",
    "HTTP/1.0",
    "GET ",
    "POST ",
    "Content-Length: 3\r\n",
    "Content-Length: 0\r\n",
    "content-length:5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: identity\r\n",
    "transfer-encoding:\tchunked\r\n",
    "Host: localhost\r\n",
    "Host:\r\n",
    "Connection: close\r\n",
    "Connection: keep-alive\r\n",
    "Upgrade: websocket\r\n",
    "Expect: 100-continue\r\n",
    "Trailer: X\r\n",
    "TE: trailers\r\n",
    "X: y\r\n",
    "X-Folded: a\r\n b\r\n",
    "0\r\n\r\n",
    "3\r\nabc\r\n",
    "3;a=\"b\"\r\nabc\r\n",
    "abc",
    "GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "http://localhost",
    "//",
    "/../",
    "%2f",
    "Content-Length",
    "Transfer-Encoding",
];

/// Random mutations of the corpus, the same for the same seed.
pub(super) struct Mutations {
    state: u64,
}

impl Mutations {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }
    }

    /// A number below `most` (xorshift).
    fn below(&mut self, most: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        usize::try_from(self.state >> 33).expect("31 bits") % most.max(1)
    }

    fn of<'a>(&mut self, some: &[&'a str]) -> &'a [u8] {
        some[self.below(some.len())].as_bytes()
    }

    /// Changes one thing.
    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len() + 1);
        match self.below(8) {
            0 => {
                let piece = self.of(PIECES);
                bytes.splice(at..at, piece.iter().copied());
            }
            1 => {
                // a whole line more
                let lines: Vec<_> = (0..bytes.len()).filter(|at| bytes[..*at].ends_with(b"\r\n")).collect();
                let at = lines.get(self.below(lines.len())).copied().unwrap_or(at);
                let piece = self.of(PIECES);
                bytes.splice(at..at, piece.iter().copied());
            }
            2 => {
                let end = (at + 1 + self.below(3)).min(bytes.len());
                bytes.drain(at.min(end)..end);
            }
            3 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = *b"\r\n \t:,;/?#%\x00\x01\x7f\x80\xff09aAzZ".get(at % 23).unwrap_or(&b' ');
                }
            }
            4 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << (at % 8);
                }
            }
            5 => {
                // the other case
                if let Some(byte) = bytes.get_mut(at).filter(|byte| byte.is_ascii_alphabetic()) {
                    *byte ^= 0x20;
                }
            }
            6 => {
                // a line twice
                let start = bytes[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                let end = bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| at + end + 1);
                let line = bytes[start..end].to_vec();
                bytes.splice(start..start, line);
            }
            _ => bytes.extend_from_slice(self.of(CORPUS)),
        }
    }
}

impl Iterator for Mutations {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut bytes = self.of(CORPUS).to_vec();
        for _ in 0..=self.below(3) {
            self.mutate(&mut bytes);
        }
        Some(bytes)
    }
}
