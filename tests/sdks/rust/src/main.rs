//! Calls with reqwest as it is: a line `CALL URL` on stdin for each. Reports in JSON, a line each.

use std::error::Error;
use std::io::BufRead as _;

use reqwest::Method;
use reqwest::blocking::Client;

fn call(client: &Client, name: &str, url: &str) -> Result<(), reqwest::Error> {
    let (method, path, body) = match name {
        "read" => (Method::GET, "/things", Vec::new()),
        "write" => (Method::POST, "/things", b"{}".to_vec()),
        _ => (Method::PUT, "/things/1", vec![0; 5 << 20]),
    };
    client.request(method, format!("{url}{path}")).body(body).send()?.error_for_status()?.bytes().map(drop)
}

/// An error with its sources, without what JSON would have to escape.
fn text(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text.replace(|c: char| c.is_control() || c == '"' || c == '\\', " ")
}

fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (name, url) = line.split_once(' ').ok_or("expected CALL URL")?;
        let error = call(&client, name, url).err().map(|error| text(&error)).unwrap_or_default();
        println!(r#"{{"ok": {}, "error": "{error}", "attempts": null}}"#, error.is_empty());
    }
    Ok(())
}
