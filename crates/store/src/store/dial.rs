//! Connects to a store: from its address to a connection with an accepted password.

use std::path::Path;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo};
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, ToSocketAddrs, UnixStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use super::fault::Fault;
use super::receive_limit::ReceiveLimit;
use crate::clock::Clock;
use crate::credentials::Secret;
use crate::spec::{Endpoint, Store};
use crate::tls;

/// Makes connections to the servers of a store.
#[derive(Debug)]
pub(super) struct Dialer {
    pub(super) store: Store,
    pub(super) password: Option<Secret>,
    pub(super) sentinel_password: Option<Secret>,
    pub(super) tls: Option<tls::Client>,
    pub(super) clock: Clock,
}

/// A connection to a server of a store; closed when dropped.
#[derive(Debug)]
pub(super) struct StoreConnection {
    pub(super) redis: MultiplexedConnection,
    /// The server at the other end; `None` for a Unix socket.
    pub(super) at: Option<Endpoint>,
    /// The password sent last.
    password: Option<String>,
    /// The task reading from and writing to the connection.
    driver: AbortOnDropHandle<()>,
}

/// A user and a password for a store.
struct Login {
    user: Option<String>,
    password: Option<String>,
}

// === impl Dialer ===

impl Dialer {
    /// Connects to the server at a Unix socket, within the timeout.
    pub(super) async fn dial_socket(&self, path: &Path) -> Result<StoreConnection, Fault> {
        let stream = self.in_time(async { Ok(UnixStream::connect(path).await?) }).await?;
        self.in_time(self.greet(stream, self.login())).await
    }

    /// Connects to one of the store's servers, within the timeout.
    pub(super) async fn dial_at(&self, at: &Endpoint) -> Result<StoreConnection, Fault> {
        self.in_time(self.connect(at, (&*at.host, at.port), self.login())).await
    }

    /// Connects to a sentinel, within the timeout.
    pub(super) async fn dial_sentinel(&self, at: &Endpoint) -> Result<StoreConnection, Fault> {
        let password = self.sentinel_password.as_ref().and_then(|secret| secret.text(self.clock.now()));
        let user = self.store.sentinel.user.clone();
        self.in_time(self.connect(at, (&*at.host, at.port), Login { user, password })).await
    }

    /// Runs `work`, and gives up at the timeout.
    pub(super) async fn in_time<T>(&self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        tokio::time::timeout(self.store.timeout, work).await.unwrap_or(Err(Fault::Timeout))
    }

    /// Connects to an address of a server; its certificate must be for `at`.
    async fn connect(&self, at: &Endpoint, to: impl ToSocketAddrs, login: Login) -> Result<StoreConnection, Fault> {
        // The address may come from a sentinel or a node of a cluster.
        if login.password.is_some() && self.tls.is_none() && !at.is_local() {
            let why = format!("{at} is on another machine, and without TLS the password would be sent unencrypted");
            return Err(Fault::Settings(why));
        }
        let stream = self.first(to).await?;
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
        Ok(StoreConnection { at: Some(at.clone()), ..connection })
    }

    /// Connects to the first address accepting a connection. Each address gets a share of the
    /// timeout, so that a silent one does not use up the time for the rest.
    pub(super) async fn first(&self, to: impl ToSocketAddrs) -> Result<TcpStream, Fault> {
        let addresses: Vec<_> = lookup_host(to).await?.collect();
        let share = self.store.timeout / (u32::try_from(addresses.len()).unwrap_or(u32::MAX - 1) + 1);
        let mut last = Fault::Io("the server's name has no address".to_owned());
        for address in addresses {
            match tokio::time::timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = error.into(),
                Err(_) => last = Fault::Timeout,
            }
        }
        Err(last)
    }

    /// Sends the password on a new connection, if there is one.
    async fn greet<S>(&self, stream: S, login: Login) -> Result<StoreConnection, Fault>
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
        let stream = ReceiveLimit::new(stream);
        let (redis, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
        let driver = AbortOnDropHandle::new(tokio::spawn(driver));
        Ok(StoreConnection { redis, at: None, password: login.password, driver })
    }

    fn login(&self) -> Login {
        Login { user: self.store.login.user.clone(), password: self.password() }
    }

    /// Returns the password. Its file is read again if that is due.
    fn password(&self) -> Option<String> {
        self.password.as_ref().and_then(|secret| secret.text(self.clock.now()))
    }

    fn secrets(&self) -> impl Iterator<Item = &Secret> {
        self.password.iter().chain(&self.sentinel_password)
    }

    /// Waits until there are passwords: at the start, for the commands that print them.
    pub(super) async fn passwords(&self) -> Result<(), Fault> {
        for secret in self.secrets() {
            secret.ready(true, self.clock).await.map_err(|error| Fault::Password(error.to_string()))?;
        }
        Ok(())
    }

    /// Runs the commands of passwords again if that is due.
    pub(super) fn keep_passwords_fresh(&self) {
        self.secrets().for_each(|secret| secret.keep_fresh(self.clock));
    }

    /// Returns the open connection, or makes one with `dial`, logged in with the present password.
    pub(super) async fn current(
        &self,
        open: Option<StoreConnection>,
        dial: impl Future<Output = Result<StoreConnection, Fault>>,
    ) -> Result<StoreConnection, Fault> {
        let current = async {
            let passwords = tokio::time::timeout(self.store.timeout, self.passwords()).await;
            passwords.unwrap_or_else(|_| Err(Fault::Password(NO_PASSWORD.to_owned())))?;
            let mut connection = match open {
                Some(open) => open,
                None => dial.await?,
            };
            self.renew(&mut connection).await?;
            Ok(connection)
        };
        current.await.inspect_err(|fault: &Fault| {
            if fault.is_of_password() {
                // The files are read, and the commands run, again before their next use.
                self.secrets().for_each(|secret| secret.refused(secret.number(), self.clock));
            }
        })
    }

    /// Sends a changed password on an open connection. A server keeps open connections after it
    /// revokes their password, so that a mistake would show only much later.
    pub(super) async fn renew(&self, connection: &mut StoreConnection) -> Result<(), Fault> {
        let password = self.password();
        if password == connection.password {
            return Ok(());
        }
        let mut command = redis::cmd("AUTH");
        let user = self.store.login.user.as_deref().into_iter();
        user.chain(password.as_deref()).for_each(|word| _ = command.arg(word));
        command.query_async::<()>(&mut connection.redis).await?;
        tracing::info!(store = &*self.store.name, "the store has accepted the new password");
        connection.password = password;
        Ok(())
    }
}

// === impl StoreConnection ===

impl StoreConnection {
    /// Returns true once the connection has ended, for example closed by the server while idle.
    pub(super) fn has_ended(&self) -> bool {
        self.driver.is_finished()
    }
}

const NO_PASSWORD: &str = "its password command has not printed a password yet";
/// The interval of TCP keepalive probes.
const KEEPALIVE: Duration = Duration::from_secs(15);
