//! The filter between a client and hyper: passes on what the scanner allows, within bounds of time
//! and memory (P9, P10).
//!
//! If the scanner finds a fault, hyper gets a line that no parser accepts, and an end of the head,
//! so that it parses the line. hyper first sends the answers to earlier requests, then answers 400
//! and closes. A head that is too large is cut instead, and the guard refuses the request.

use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::ReadBuf;
use tokio::time::Sleep;

use super::WireState;
use crate::clock::timer;
use crate::proxy::guard::buffers::HeadShare;
use crate::proxy::guard::scan::{Fault, Rest, ScanResult, Scanner};

/// The scanner of a connection, with bounds on the incoming head.
pub(super) struct Filter {
    pub(super) scanner: Scanner,
    /// Bytes to give hyper in place of some that the client sent. hyper gets them before anything
    /// else.
    replaced: Bytes,
    /// This connection's part of the memory for large heads.
    share: HeadShare,
    /// The deadline of the head coming in, if one is incomplete.
    patience: Option<Pin<Box<Sleep>>>,
}

// === impl Filter ===

impl Filter {
    pub(super) fn new(heads: &Arc<AtomicUsize>) -> Self {
        Self { scanner: Scanner::default(), replaced: Bytes::new(), share: HeadShare::of(heads), patience: None }
    }

    /// Gives hyper what was read ahead, then what comes, as far as the scanner lets it pass.
    pub(super) fn poll_read(
        &mut self,
        state: &mut WireState,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if mem::take(&mut state.stays) {
            self.scanner.stay();
        }
        let before = buf.filled().len();
        loop {
            if self.give_replaced(buf) {
                return Poll::Ready(Ok(()));
            }
            match state.fault {
                // hyper would not answer a client that has ended.
                Some(Fault::TooLarge) => return state.input.park(cx),
                Some(_) => return Poll::Ready(Ok(())),
                None => {}
            }
            let is_ahead = !state.input.bytes().is_empty();
            match state.input.poll_read(cx, buf) {
                Poll::Pending if self.scanner.is_in_head() && self.is_late(state, cx) => return Poll::Ready(Ok(())),
                Poll::Pending => return state.input.park(cx),
                Poll::Ready(read) => read?,
            }
            if buf.filled().len() == before {
                return Poll::Ready(Ok(())); // the end
            }
            state.used = true;
            let is_replaced = self.pass(state, buf, before, is_ahead);
            if buf.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
            // Nothing passes. All that came may be of a target that is too long, and dropped.
            if !is_replaced {
                return state.input.park(cx);
            }
            if self.is_late(state, cx) {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Removes from the buffer what hyper must not get, or must get only later or changed. Returns
    /// true if some bytes were replaced or dropped.
    fn pass(&mut self, state: &mut WireState, buf: &mut ReadBuf<'_>, before: usize, is_ahead: bool) -> bool {
        let read = buf.filled().get(before..).unwrap_or_default();
        let ScanResult { passed, rest } = self.scan(state, read);
        let replaced = if let Rest::Replaced(replaced) = rest { replaced } else { 0 };
        state.input.consume(is_ahead, read, passed + replaced);
        buf.set_filled(before + passed);
        match rest {
            Rest::None | Rest::Held => {}
            Rest::Replaced(_) => {
                self.replaced = self.scanner.take_replaced().into();
                self.give_replaced(buf);
            }
            Rest::Refused(fault) => {
                state.fault = Some(fault);
                self.replaced = Bytes::from_static(REFUSED);
                if fault == Fault::TooLarge {
                    state.large_head = true;
                    self.replaced = self.scanner.cut().into();
                }
                return true;
            }
        }
        replaced > 0
    }

    /// Scans the bytes just read, and counts those of a large head.
    fn scan(&mut self, state: &mut WireState, read: &[u8]) -> ScanResult {
        let scanned = self.scanner.scan(read);
        let is_in_head = self.scanner.is_in_head();
        let bytes = if is_in_head && !matches!(scanned.rest, Rest::Replaced(_)) { read.len() } else { 0 };
        let has_room = self.share.grow(bytes, self.scanner.most_lines());
        state.large_head |= self.share.is_taken();
        if !is_in_head {
            self.patience = None;
            self.share.end();
        }
        if !has_room && matches!(scanned.rest, Rest::None | Rest::Held) {
            return ScanResult { passed: 0, rest: Rest::Refused(Fault::Crowded) };
        }
        scanned
    }

    /// Gives hyper the changed bytes. Returns true if there were any.
    fn give_replaced(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let had_some = !self.replaced.is_empty();
        buf.put_slice(&self.replaced.split_to(self.replaced.len().min(buf.remaining())));
        had_some
    }

    /// Returns true if a head takes too long, which ends the connection.
    fn is_late(&mut self, state: &mut WireState, cx: &mut Context<'_>) -> bool {
        let is_late = self.patience.get_or_insert_with(|| timer(HEAD)).as_mut().poll(cx).is_ready();
        if is_late {
            state.fault = Some(Fault::Slow);
        }
        is_late
    }
}

/// Bytes no parser accepts in a head or a chunk's size, and the end of a head.
const REFUSED: &[u8] = b"\0\r\n\r\n";
/// The time from the first byte of a head to its last; kube-apiserver waits 32 s.
pub(super) const HEAD: Duration = Duration::from_secs(30);
