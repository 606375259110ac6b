//! The upstream of a story: it answers, fails, stalls, breaks off and closes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::{TcpListener, TcpStream};

use super::dice::{Dice, dribble, is_whole};
use crate::clock::Clock;

/// An upstream that does whatever the dice say. Counts the requests whose head reached it.
pub(super) async fn serve_all(listener: TcpListener, dice: Dice, clock: Clock, heads: Arc<AtomicUsize>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(serve(stream, dice.child(), clock, Arc::clone(&heads)));
    }
}

async fn serve(mut stream: TcpStream, dice: Dice, clock: Clock, heads: Arc<AtomicUsize>) {
    loop {
        let Some(()) = read_request(&mut stream, &dice, &heads).await else {
            return;
        };
        clock.sleep(dice.pause()).await;
        let (answer, cut) = match dice.below(10) {
            0 => return,
            1 => ("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nnot so much", true),
            2 => ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", true),
            3 => ("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\nno", false),
            4 => ("HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", false),
            5 => {
                clock.sleep(Duration::from_secs(40)).await; // longer than the gate waits for an answer
                return;
            }
            6 => ("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", true),
            _ => ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfull\r\n0\r\n\r\n", false),
        };
        let part = dice.one_in(8).then(|| usize::try_from(dice.below(answer.len() as u64)).expect("small"));
        if !dribble(&mut stream, answer.as_bytes(), part, &dice, clock).await || cut {
            return;
        }
    }
}

/// Reads one request; or closes in the middle of it.
async fn read_request<R: AsyncRead + Unpin>(stream: &mut R, dice: &Dice, heads: &AtomicUsize) -> Option<()> {
    let mut request = Vec::new();
    let mut counted = false;
    while !is_whole(&request) {
        if stream.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
        if !counted && request.windows(4).any(|four| four == b"\r\n\r\n") {
            counted = true;
            heads.fetch_add(1, Ordering::Relaxed);
            if dice.one_in(12) {
                return None;
            }
        }
    }
    Some(())
}
