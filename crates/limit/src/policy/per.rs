//! What buckets and limits on calls in flight can be split by.

words! {
    /// What a bucket or a limit on calls in flight is split by: there is one for each.
    pub enum Per {
        /// One for the whole gate.
        Gate = "gate",
        /// One per flow.
        Flow = "flow",
        /// One per client credential.
        Credential = "credential",
        /// One per cloud account, as the upstream counts its quotas: with AWS per account, service
        /// and region.
        Account = "account",
        /// One per cloud account, service, region and action (AWS).
        Action = "action",
        /// One per client, by its authenticated name.
        Client = "client",
    }
}

// === impl Per ===

impl Per {
    /// Returns true if the split needs the caller's identity. All limits of a class are split by the
    /// same identity.
    pub const fn is_by_identity(self) -> bool {
        matches!(self, Self::Account | Self::Action | Self::Client | Self::Credential)
    }
}
