//! The units of split limits.

words! {
    /// The unit of a split bucket or set of slots.
    pub enum Per {
        /// One for the gate.
        Gate = "gate",
        /// One per flow.
        Flow = "flow",
        /// One per client credential.
        Credential = "credential",
        /// One per quota of an account, as the gate's dialect tells them: of AWS per account,
        /// service and region.
        Account = "account",
        /// One per account, service, region and action, as the gate's dialect tells them.
        Action = "action",
        /// One per client, by its name at the gate.
        Client = "client",
    }
}

// === impl Per ===

impl Per {
    /// True if it splits by the identity of arrivals. All limits of a class are split by the same
    /// one.
    pub const fn is_by_identity(self) -> bool {
        matches!(self, Self::Account | Self::Action | Self::Client | Self::Credential)
    }
}
