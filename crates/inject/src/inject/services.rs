//! The services of AWS, by their names in signatures.

/// An AWS service: from the table or, if it is not there, guessed.
pub(super) struct AwsService {
    /// The first part of the service's host names.
    pub(super) host: String,
    /// The service's names in environment variables such as `AWS_ENDPOINT_URL_EC2`.
    pub(super) variables: Vec<String>,
    /// False if the service is guessed: most services have the same name everywhere.
    pub(super) is_known: bool,
}

/// Returns the service of this name.
pub(super) fn service(name: &str) -> AwsService {
    let rows = include_str!("services.txt").lines().map(|row| row.split(' '));
    for mut row in rows {
        if row.next() == Some(name) {
            let host = row.next().unwrap_or(name).to_owned();
            return AwsService { host, variables: row.map(str::to_owned).collect(), is_known: true };
        }
    }
    let variable = name.to_ascii_uppercase().replace('-', "_");
    AwsService { host: name.to_owned(), variables: vec![variable], is_known: false }
}
