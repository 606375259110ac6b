//! From the address of a store to a connection on which its server has taken the password.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo};
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

use super::fault::Fault;
use crate::clock::Clock;
use crate::credentials::Secret;
use crate::spec::{Store, StoreAddress};
use crate::tls;

/// Everything that is needed to connect to a store.
#[derive(Debug)]
pub(super) struct Dialer {
    pub(super) store: Store,
    pub(super) password: Option<Secret>,
    pub(super) tls: Option<tls::Client>,
    pub(super) clock: Clock,
}

/// A connection to a store. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) redis: MultiplexedConnection,
    /// The password that the server was told.
    password: Option<String>,
    driver: AbortHandle,
}

// === impl Dialer ===

impl Dialer {
    /// Connects, within the timeout.
    pub(super) async fn dial(&self) -> Result<Connection, Fault> {
        tokio::time::timeout(self.store.timeout, self.connect()).await.unwrap_or(Err(Fault::Timeout))
    }

    async fn connect(&self) -> Result<Connection, Fault> {
        match &self.store.address {
            StoreAddress::Unix(path) => self.greet(UnixStream::connect(path).await?).await,
            StoreAddress::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
                match &self.tls {
                    None => self.greet(stream).await,
                    Some(tls) => {
                        tls.refresh(self.clock.now());
                        let name = self.store.tls.server_name.clone().unwrap_or_else(|| host.clone());
                        let name = ServerName::try_from(name).map_err(|error| Fault::Settings(error.to_string()))?;
                        let stream = TlsConnector::from(tls.http1_config()).connect(name, stream).await;
                        self.greet(stream.map_err(|error| Fault::Io(format!("TLS: {error}")))?).await
                    }
                }
            }
        }
    }

    /// Sends the password, if there is one.
    async fn greet<S>(&self, stream: S) -> Result<Connection, Fault>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // Naming the library would take one more right.
        let mut info = RedisConnectionInfo::default().set_skip_set_lib_name();
        let password = self.password();
        if let Some(password) = &password {
            info = info.set_password(password);
        }
        if let Some(user) = &self.store.user {
            info = info.set_username(user);
        }
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(self.store.timeout));
        let (redis, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
        Ok(Connection { redis, password, driver: tokio::spawn(driver).abort_handle() })
    }

    /// Returns the password. Its file is read again when it is time to.
    fn password(&self) -> Option<String> {
        self.password.as_ref().and_then(|secret| secret.reveal(self.clock.now()))
    }

    /// Sends a password that has changed on an open connection: a server keeps connections whose
    /// password is taken away, so that the mistake would show only when the connection ends.
    pub(super) async fn renew(&self, connection: &mut Connection) -> Result<(), Fault> {
        let password = self.password();
        if password == connection.password {
            return Ok(());
        }
        let mut command = redis::cmd("AUTH");
        let user = self.store.user.as_deref().into_iter();
        user.chain(password.as_deref()).for_each(|word| _ = command.arg(word));
        command.query_async::<()>(&mut connection.redis).await?;
        tracing::info!(store = &*self.store.name, "the store has taken the new password");
        connection.password = password;
        Ok(())
    }

    /// Reads the password's file again before its next use: the server did not take it.
    pub(super) fn refused(&self) {
        self.password.iter().for_each(|secret| secret.refused(0, self.clock));
    }
}

// === impl Connection ===

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// The time after which a connection without traffic is probed.
const KEEPALIVE: Duration = Duration::from_secs(15);
