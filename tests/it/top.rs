//! `tidegate top` on a real terminal of 80 by 24.

#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::Read as _;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::cli::input::get;
use crate::command::tidegate;
use crate::operate::{Process, api};

/// Reads until the screen has shown this.
fn shows(terminal: &mut File, seen: &mut String, wanted: &str) -> String {
    let mut piece = [0; 4096];
    loop {
        let frame = seen.rsplit("\u{1b}[H").next().filter(|frame| frame.contains("\u{1b}[J") && frame.contains(wanted));
        if let Some(frame) = frame {
            return frame.to_owned();
        }
        let length = terminal.read(&mut piece).unwrap_or_else(|error| panic!("{wanted}: {error}\n{seen}"));
        seen.push_str(&String::from_utf8_lossy(&piece[..length]));
    }
}

#[test]
fn top_fits_80_by_24() {
    let (upstream, _) = api();
    let process = Process::start(&format!("http://127.0.0.1:{upstream}"), "backoff = { base = \"60s\" }\n");
    for object in 0..30 {
        assert!(get(process.gate, &format!("/api/v1/namespaces/prod/pods/bad-{object}")).starts_with("HTTP/1.1 500"));
    }
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&master).and_then(|()| unlockpt(&master)).expect("it is ours");
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).expect("it has a size");
    let name = ptsname(&master, Vec::new()).expect("it has a name").into_string().expect("text");
    let side = || File::options().read(true).write(true).open(&name).expect("its other side");
    let mut command = tidegate(["top", "--every", "3600", "--gate", "k", "--config"]);
    command.arg(&process.config).env("TERM", "xterm").env_remove("NO_COLOR");
    command.stdin(Stdio::from(side())).stdout(Stdio::from(side())).stderr(Stdio::null());
    let mut child = command.spawn().expect("the binary was built");
    drop(command); // its ends of the terminal
    let (mut terminal, mut seen) = (File::from(master), String::new());
    let frame = shows(&mut terminal, &mut seen, "23 of ");
    assert!(frame.contains("30 keys are backing off"), "{frame}");
    assert_eq!(frame.matches("\u{1b}[K").count(), 23, "{frame}");
    for line in frame.split("\u{1b}[K") {
        let plain: String = line
            .split('\u{1b}')
            .map(|part| {
                part.trim_start_matches(|c: char| c == '[' || c.is_ascii_digit() || c == ';')
                    .trim_start_matches(['m', 'H', 'J'])
            })
            .collect();
        assert!(plain.trim_end().chars().count() <= 81, "{plain:?}");
    }
    child.kill().and_then(|()| child.wait()).expect("it was started");
    let unknown = process.command(&["top", "--once", "--gate", "other"]);
    assert!(unknown.code == Some(1) && unknown.err.contains("the gates are: k"), "{}", unknown.err);
}
