//! A stand-in for the providers: the least that each SDK takes for an answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// Starts it; it lives as long as the process. Returns its port.
pub(crate) fn start() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
    let port = listener.local_addr().expect("it listens").port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(&stream));
        }
    });
    port
}

/// Answers the requests of one connection until it ends.
fn serve(stream: &TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let (line, mut length) = (line(&mut reader)?, Length::Known(0));
        let mut target = String::new();
        loop {
            let field = self::line(&mut reader)?;
            let (name, value) = match field.split_once(':') {
                Some((name, value)) => (name.to_ascii_lowercase(), value.trim()),
                None => break,
            };
            match name.as_str() {
                "content-length" => length = Length::Known(value.parse().ok()?),
                "transfer-encoding" => length = Length::Chunked,
                "x-amz-target" => target = value.to_owned(),
                "expect" => (&mut &*stream).write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?,
                _ => {}
            }
        }
        let body = match length {
            Length::Known(length) => {
                let mut body = vec![0; length];
                reader.read_exact(&mut body).ok()?;
                body
            }
            Length::Chunked => chunks(&mut reader)?,
        };
        let (kind, text) = answer(&line, &target, &String::from_utf8_lossy(&body));
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", text.len());
        let text = if line.starts_with("HEAD") { "" } else { text };
        (&mut &*stream).write_all([head.as_str(), text].concat().as_bytes()).ok()?;
    }
}

enum Length {
    Known(usize),
    Chunked,
}

/// A line without its end; `None` when there is none left.
fn line(reader: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    (reader.read_line(&mut line).ok()? > 0).then(|| line.trim_end().to_owned())
}

fn chunks(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let size = usize::from_str_radix(&line(reader)?, 16).ok()?;
        let mut chunk = vec![0; size];
        reader.read_exact(&mut chunk).ok()?;
        body.extend(chunk);
        while !line(reader)?.is_empty() {}
        if size == 0 {
            return Some(body);
        }
    }
}

/// The answer to a request, by its first line, its `X-Amz-Target` and its form.
fn answer(line: &str, target: &str, body: &str) -> (&'static str, &'static str) {
    let path = line.split(' ').nth(1).unwrap_or_default();
    match path {
        _ if target.ends_with("ListTables") => ("application/x-amz-json-1.0", "{\"TableNames\":[]}"),
        _ if body.contains("Action=DescribeInstances") => ("text/xml", EC2),
        _ if body.contains("Action=GetCallerIdentity") => ("text/xml", STS),
        _ if path.starts_with("/2013-04-01/hostedzone") => ("text/xml", ROUTE_53),
        _ if path.starts_with("/clusters/") => ("application/json", "{\"cluster\":{\"name\":\"c\"}}"),
        _ if path.starts_with("/users/") => ("application/json", "{\"login\":\"x\",\"id\":1,\"url\":\"\"}"),
        _ if path.starts_with("/storage/") => ("application/json", "{\"kind\":\"storage#buckets\",\"items\":[]}"),
        _ if path.starts_with("/subscriptions/") => ("application/json", "{\"value\":[]}"),
        _ => ("application/octet-stream", "data"),
    }
}

const EC2: &str = "<DescribeInstancesResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><requestId>r</requestId>\
                   <reservationSet/></DescribeInstancesResponse>";
const STS: &str = "<GetCallerIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><GetCallerIdentityResult>\
                   <Arn>a</Arn><UserId>u</UserId><Account>1</Account></GetCallerIdentityResult></GetCallerIdentityResponse>";
const ROUTE_53: &str = "<ListHostedZonesResponse xmlns=\"https://route53.amazonaws.com/doc/2013-04-01/\"><HostedZones/>\
                        <IsTruncated>false</IsTruncated><MaxItems>100</MaxItems></ListHostedZonesResponse>";
