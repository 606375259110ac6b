//! A TCP relay in front of the API server that can be cut: an outage in which the server itself
//! loses nothing.

use std::sync::{Mutex, PoisonError};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

use crate::ports::free_port;

/// Relays from its port while it is not cut.
#[derive(Debug)]
pub struct Relay {
    port: u16,
    to: u16,
    running: Mutex<Option<Runtime>>,
}

impl Relay {
    pub fn start(to: u16) -> Self {
        let relay = Self { port: free_port(), to, running: Mutex::new(None) };
        relay.restore();
        relay
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Breaks every connection and refuses new ones.
    pub fn cut(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The runtime's tasks end with it, and their sockets too.
        running.expect("it was relaying").shutdown_timeout(std::time::Duration::from_secs(5));
    }

    /// Relays again.
    pub fn restore(&self) {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime can be built");
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", self.port))).expect("the port is still ours");
        runtime.spawn(serve(listener, self.to));
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(runtime);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(running) = self.running.lock().unwrap_or_else(PoisonError::into_inner).take() {
            running.shutdown_background();
        }
    }
}

async fn serve(listener: TcpListener, to: u16) {
    loop {
        let Ok((mut inner, _)) = listener.accept().await else { continue };
        tokio::spawn(async move {
            let Ok(mut outer) = TcpStream::connect(("127.0.0.1", to)).await else { return };
            drop((inner.set_nodelay(true), outer.set_nodelay(true)));
            drop(copy_bidirectional(&mut inner, &mut outer).await);
        });
    }
}
