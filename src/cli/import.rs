//! `tidegate import`: prints the limits that other programs take as classes of a gate.

use std::io;

use anyhow::{Context as _, anyhow};
use clap::{Args, Subcommand};

use super::{Failure, show};
use crate::import;

pub(super) const EXAMPLES: &str = "\
Example:
  tidegate import aws-api-throttle 'EC2:Describe.*=10:20,WAFV2:.*=1:1'

The TOML goes into tidegate.toml, where tidegate check reads it.";

const THROTTLE: &str = "\
Examples:
  tidegate import aws-api-throttle 'Elastic Load Balancing v2:RegisterTargets=4:20'
  kubectl get deploy/lbc -o yaml | grep aws-api-throttle | tidegate import aws-api-throttle

What has no form as a pattern with * is left out; comments and standard error say so.";

/// The limits to read.
#[derive(Clone, Debug, Args)]
pub(super) struct Options {
    #[command(subcommand)]
    from: From,
}

/// The places that limits come from.
#[derive(Clone, Debug, Subcommand)]
enum From {
    /// The flag of the AWS controllers: Service:regex=rate:burst, with commas between
    #[command(after_help = THROTTLE)]
    AwsApiThrottle {
        /// The flag's value; without one, or with "-", standard input
        value: Option<String>,
        /// The gate that the classes are for
        #[arg(long, value_name = "NAME", default_value = "aws")]
        gate: String,
    },
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let From::AwsApiThrottle { value, gate } = &options.from;
    let is_name = gate.starts_with(|first: char| first.is_ascii_lowercase());
    if !is_name || gate.contains(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '_') {
        return Err(anyhow!("--gate {gate:?} is not the name of a gate, expected snake_case such as \"aws\"").into());
    }
    let value = match value.as_deref() {
        None | Some("-") => io::read_to_string(io::stdin()).context("cannot read standard input")?,
        Some(value) => value.to_owned(),
    };
    let imported = import::aws_api_throttle(&value, gate).map_err(|wrong| {
        let wrong: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        anyhow!("--aws-api-throttle cannot be read: {}", wrong.join("; "))
    })?;
    for note in &imported.notes {
        show::error(&format!("tidegate: {note}"));
    }
    Ok(show::text(&imported.toml)?)
}
