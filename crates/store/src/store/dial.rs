//! From the address of a store to a connection on which its server has taken the password.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo};
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, ToSocketAddrs, UnixStream, lookup_host};
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

use super::bounded::Bounded;
use super::fault::Fault;
use crate::clock::Clock;
use crate::credentials::Secret;
use crate::spec::{Endpoint, Store};
use crate::tls;

/// Everything that is needed to connect to a store.
#[derive(Debug)]
pub(super) struct Dialer {
    pub(super) store: Store,
    pub(super) password: Option<Secret>,
    pub(super) sentinel_password: Option<Secret>,
    pub(super) tls: Option<tls::Client>,
    pub(super) clock: Clock,
}

/// A connection to a store. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) redis: MultiplexedConnection,
    /// Its server, unless that is at a Unix socket.
    pub(super) at: Option<Endpoint>,
    /// The password that the server was told.
    password: Option<String>,
    driver: Driver,
}

/// The task that reads and writes for a connection.
#[derive(Debug)]
struct Driver(AbortHandle);

/// A user and its password.
struct Login {
    user: Option<String>,
    password: Option<String>,
}

// === impl Dialer ===

impl Dialer {
    /// Connects to the server at a Unix socket, within the timeout.
    pub(super) async fn dial_socket(&self, path: &Path) -> Result<Connection, Fault> {
        let stream = self.in_time(async { Ok(UnixStream::connect(path).await?) }).await?;
        self.in_time(self.greet(stream, self.login())).await
    }

    /// Connects to one of the store's servers, within the timeout.
    pub(super) async fn dial_at(&self, at: &Endpoint) -> Result<Connection, Fault> {
        self.in_time(self.connect(at, self.login())).await
    }

    /// Connects to one of the addresses behind the name of a server, within the timeout.
    pub(super) async fn dial_address(&self, name: &Endpoint, to: SocketAddr) -> Result<Connection, Fault> {
        let connection = self.in_time(self.connect_to(name, to, self.login())).await?;
        Ok(Connection { at: Some(Endpoint { host: to.ip().to_string(), port: to.port() }), ..connection })
    }

    /// Connects to a sentinel, within the timeout.
    pub(super) async fn dial_sentinel(&self, at: &Endpoint) -> Result<Connection, Fault> {
        let password = self.sentinel_password.as_ref().and_then(|secret| secret.reveal(self.clock.now()));
        let user = self.store.sentinel.user.clone();
        self.in_time(self.connect(at, Login { user, password })).await
    }

    /// Gives up at the timeout.
    pub(super) async fn in_time<T>(&self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        tokio::time::timeout(self.store.timeout, work).await.unwrap_or(Err(Fault::Timeout))
    }

    async fn connect(&self, at: &Endpoint, login: Login) -> Result<Connection, Fault> {
        self.connect_to(at, (&*at.host, at.port), login).await
    }

    /// Connects to an address of a server, which has the name that its certificate is for.
    async fn connect_to(&self, at: &Endpoint, to: impl ToSocketAddrs, login: Login) -> Result<Connection, Fault> {
        // Where it is may be what a sentinel or a node of a cluster says.
        if login.password.is_some() && self.tls.is_none() && !at.is_local() {
            let why = format!("{at} is off this machine, and without TLS: its password would be sent in the clear");
            return Err(Fault::Settings(why));
        }
        let stream = self.race(to).await?;
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
        let connection = match &self.tls {
            None => self.greet(stream, login).await?,
            Some(tls) => {
                tls.refresh(self.clock.now());
                let name = self.store.tls.server_name.clone().unwrap_or_else(|| at.host.clone());
                let name = ServerName::try_from(name).map_err(|error| Fault::Settings(error.to_string()))?;
                let stream = TlsConnector::from(tls.http1_config()).connect(name, stream).await;
                let stream = stream.map_err(|error| match Fault::from(error) {
                    Fault::Io(error) => Fault::Io(format!("TLS: {error}")),
                    fault => fault,
                })?;
                self.greet(stream, login).await?
            }
        };
        Ok(Connection { at: Some(at.clone()), ..connection })
    }

    /// Connects to the address that is first to take the connection. All have been tried by half of
    /// the timeout, and the next at once where one fails: an address that is silent must not take
    /// the time of the others.
    pub(super) async fn race(&self, to: impl ToSocketAddrs) -> Result<TcpStream, Fault> {
        let mut rest = lookup_host(to).await?.collect::<Vec<_>>().into_iter();
        let head_start = self.store.timeout / 2 / u32::try_from(rest.len().max(1)).unwrap_or(u32::MAX);
        let mut tries = FuturesUnordered::new();
        let mut last = Fault::Io("its name has no address".to_owned());
        loop {
            match rest.next() {
                Some(address) => tries.push(TcpStream::connect(address)),
                None if tries.is_empty() => return Err(last),
                None => {}
            }
            let others_wait = rest.len() > 0;
            tokio::select! {
                Some(tried) = tries.next() => match tried {
                    Ok(stream) => return Ok(stream),
                    Err(error) => last = error.into(),
                },
                () = self.clock.sleep(head_start), if others_wait => {}
            }
        }
    }

    /// Sends the password, if there is one.
    async fn greet<S>(&self, stream: S, login: Login) -> Result<Connection, Fault>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // Naming the library would take one more right.
        let mut info = RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(password) = &login.password {
            info = info.set_password(password);
        }
        if let Some(user) = &login.user {
            info = info.set_username(user);
        }
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(self.store.timeout));
        let stream = Bounded::new(stream);
        let (redis, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
        let driver = Driver(tokio::spawn(driver).abort_handle());
        Ok(Connection { redis, at: None, password: login.password, driver })
    }

    fn login(&self) -> Login {
        Login { user: self.store.user.clone(), password: self.password() }
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
        let secrets = self.password.iter().chain(&self.sentinel_password);
        secrets.for_each(|secret| secret.refused(0, self.clock));
    }
}

// === impl Connection ===

impl Connection {
    /// True once it has ended, as where the server has closed it while nobody asked.
    pub(super) fn has_ended(&self) -> bool {
        self.driver.0.is_finished()
    }
}

// === impl Driver ===

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The time after which a connection without traffic is probed.
const KEEPALIVE: Duration = Duration::from_secs(15);
