//! `tidegate top` on a real terminal of 80 by 24.

#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::thread;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

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
fn top_scrolls_within_80_by_24_and_leaves_the_terminal_as_it_was() {
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
    let before = tcgetattr(side()).expect("its modes").local_modes;
    let held = side(); // or its modes are gone with the last process that has it open
    let mut command = tidegate(["top", "--every", "3600", "--gate", "k", "--config"]);
    command.arg(&process.config).env("TERM", "xterm").env_remove("NO_COLOR");
    command.stdin(Stdio::from(side())).stdout(Stdio::from(side())).stderr(Stdio::null());
    let mut child = command.spawn().expect("the binary was built");
    drop(command); // its ends of the terminal
    let (mut terminal, mut seen) = (File::from(master), String::new());
    let first = shows(&mut terminal, &mut seen, "lines 1 to 22 of ");
    assert!(first.contains("30 keys are backing off"), "{first}");
    assert!(!tcgetattr(&held).expect("its modes").local_modes.contains(LocalModes::ICANON), "keys come one by one");
    terminal.write_all(b"j").expect("it is read");
    let second = shows(&mut terminal, &mut seen, "lines 2 to 23 of ");
    terminal.write_all(b"\x1b[6~").expect("it is read");
    shows(&mut terminal, &mut seen, "lines 23 to 44 of ");
    terminal.write_all(b"G").expect("it is read");
    let last = shows(&mut terminal, &mut seen, "default ");
    for frame in [&first, &second, &last] {
        assert_eq!(frame.matches("\u{1b}[K").count(), 24, "{frame}");
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
    }
    terminal.write_all(b"q").expect("it is read");
    let reader = thread::spawn(move || while terminal.read(&mut [0; 4096]).is_ok_and(|length| length > 0) {});
    assert_eq!(child.wait().expect("it was started").code(), Some(0));
    assert_eq!(tcgetattr(&held).expect("its modes").local_modes, before);
    drop(held);
    reader.join().expect("it ends with the terminal");
    let unknown = process.command(&["top", "--once", "--gate", "other"]);
    assert!(unknown.code == Some(1) && unknown.err.contains("there is: k"), "{}", unknown.err);
}
