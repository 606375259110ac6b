//! Whose credentials the upstream sees: the client's own, or the gate's.

use http::HeaderMap;

/// Makes a request's credentials upstream's. Pass-through leaves them; inject replaces them with the gate's.
#[derive(Debug)]
pub struct Injector {}

/// Why a request may not pass with the gate's credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    /// It would act as somebody else with the gate's rights.
    #[error(
        "impersonation is off at this gate: Impersonate-* headers would act with the gate's own rights; set impersonation = \"allow\" to permit it"
    )]
    Impersonation,
}

impl Injector {
    /// Whether a request with these headers may pass at all: to be asked before it waits.
    ///
    /// # Errors
    /// Why not; a 403 to the client.
    pub fn check(&self, _headers: &HeaderMap) -> Result<(), Forbidden> {
        todo!()
    }

    /// Strips what is the client's and adds what is the gate's, if this is inject. `Upstream::send` does this.
    pub fn authorize(&self, _headers: &mut HeaderMap) {
        todo!()
    }

    /// The upstream answered 401: the credential is read anew before its next use. `Upstream::send` does this.
    pub fn upstream_said_unauthorized(&self) {
        todo!()
    }
}
