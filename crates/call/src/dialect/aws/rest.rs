//! The actions of REST services that are limited by action: Route 53, EKS and S3.
//!
//! Sources: the API references of the three.

use crate::dialect::{Head, form, is_read, route};

/// The action of a call to a service that is in the tables.
pub(super) fn action(service: &str, head: &Head<'_>, host: &str) -> Option<&'static str> {
    match service {
        "route53" => route::action(&ROUTE_53, head.method, below_version(head.uri.path())),
        "eks" => route::action(&EKS, head.method, head.uri.path()),
        "s3" | "s3express" => s3(head, host),
        _ => None,
    }
}

/// A path without the date that Route 53's begin with.
fn below_version(path: &str) -> &str {
    path.trim_start_matches('/').split_once('/').map_or("", |(_, rest)| rest)
}

/// S3 tells its calls apart by method, by whether a key is named, and by words of the query.
fn s3(head: &Head<'_>, host: &str) -> Option<&'static str> {
    let mut segments = head.uri.path().trim_start_matches('/').splitn(2, '/');
    let bucket_in_host = !(host.starts_with("s3.")
        || host.starts_with("s3-")
        || !host.contains('.')
        || host.parse::<std::net::IpAddr>().is_ok());
    let first = segments.next().filter(|segment| !segment.is_empty());
    let rest = segments.next().filter(|segment| !segment.is_empty());
    let (bucket, key) = if bucket_in_host { (true, first.is_some()) } else { (first.is_some(), rest.is_some()) };
    let level = match (bucket, key) {
        (false, _) => return (is_read(head.method)).then_some("ListBuckets"),
        (true, false) => &S3_BUCKET[..],
        (true, true) => &S3_KEY[..],
    };
    let copies = head.headers.contains_key("x-amz-copy-source");
    let words: Vec<_> = form::pairs(head.uri.query().unwrap_or_default()).map(|(name, _)| name).collect();
    let has = |word: &str| match word {
        "" => true,
        "copy" => copies,
        word => words.iter().any(|given| given == word),
    };
    let fits = |method: &str, needs: &[&str]| method == head.method.as_str() && needs.iter().all(|word| has(word));
    level.iter().find(|(method, needs, _)| fits(method, needs)).map(|(.., action)| *action)
}

/// A call of S3: its method, the words that its query must have (`copy`: the header of a copy), and
/// its action. The first that fits.
type S3Route = (&'static str, &'static [&'static str], &'static str);

const S3_BUCKET: [S3Route; 42] = [
    ("GET", &["list-type"], "ListObjectsV2"),
    ("GET", &["versions"], "ListObjectVersions"),
    ("GET", &["uploads"], "ListMultipartUploads"),
    ("GET", &["location"], "GetBucketLocation"),
    ("GET", &["acl"], "GetBucketAcl"),
    ("GET", &["cors"], "GetBucketCors"),
    ("GET", &["encryption"], "GetBucketEncryption"),
    ("GET", &["lifecycle"], "GetBucketLifecycleConfiguration"),
    ("GET", &["logging"], "GetBucketLogging"),
    ("GET", &["notification"], "GetBucketNotificationConfiguration"),
    ("GET", &["object-lock"], "GetObjectLockConfiguration"),
    ("GET", &["ownershipControls"], "GetBucketOwnershipControls"),
    ("GET", &["policy"], "GetBucketPolicy"),
    ("GET", &["policyStatus"], "GetBucketPolicyStatus"),
    ("GET", &["publicAccessBlock"], "GetPublicAccessBlock"),
    ("GET", &["replication"], "GetBucketReplication"),
    ("GET", &["tagging"], "GetBucketTagging"),
    ("GET", &["versioning"], "GetBucketVersioning"),
    ("GET", &["website"], "GetBucketWebsite"),
    ("GET", &[], "ListObjects"),
    ("HEAD", &[], "HeadBucket"),
    ("PUT", &["acl"], "PutBucketAcl"),
    ("PUT", &["cors"], "PutBucketCors"),
    ("PUT", &["encryption"], "PutBucketEncryption"),
    ("PUT", &["lifecycle"], "PutBucketLifecycleConfiguration"),
    ("PUT", &["logging"], "PutBucketLogging"),
    ("PUT", &["notification"], "PutBucketNotificationConfiguration"),
    ("PUT", &["object-lock"], "PutObjectLockConfiguration"),
    ("PUT", &["ownershipControls"], "PutBucketOwnershipControls"),
    ("PUT", &["policy"], "PutBucketPolicy"),
    ("PUT", &["publicAccessBlock"], "PutPublicAccessBlock"),
    ("PUT", &["replication"], "PutBucketReplication"),
    ("PUT", &["tagging"], "PutBucketTagging"),
    ("PUT", &["versioning"], "PutBucketVersioning"),
    ("PUT", &["website"], "PutBucketWebsite"),
    ("PUT", &[], "CreateBucket"),
    ("DELETE", &["policy"], "DeleteBucketPolicy"),
    ("DELETE", &["lifecycle"], "DeleteBucketLifecycle"),
    ("DELETE", &["tagging"], "DeleteBucketTagging"),
    ("DELETE", &[], "DeleteBucket"),
    ("POST", &["delete"], "DeleteObjects"),
    ("POST", &[], "PostObject"),
];

const S3_KEY: [S3Route; 25] = [
    ("GET", &["acl"], "GetObjectAcl"),
    ("GET", &["attributes"], "GetObjectAttributes"),
    ("GET", &["legal-hold"], "GetObjectLegalHold"),
    ("GET", &["retention"], "GetObjectRetention"),
    ("GET", &["tagging"], "GetObjectTagging"),
    ("GET", &["torrent"], "GetObjectTorrent"),
    ("GET", &["uploadId"], "ListParts"),
    ("GET", &[], "GetObject"),
    ("HEAD", &[], "HeadObject"),
    ("PUT", &["uploadId", "copy"], "UploadPartCopy"),
    ("PUT", &["uploadId"], "UploadPart"),
    ("PUT", &["acl"], "PutObjectAcl"),
    ("PUT", &["legal-hold"], "PutObjectLegalHold"),
    ("PUT", &["retention"], "PutObjectRetention"),
    ("PUT", &["tagging"], "PutObjectTagging"),
    ("PUT", &["copy"], "CopyObject"),
    ("PUT", &[], "PutObject"),
    ("DELETE", &["uploadId"], "AbortMultipartUpload"),
    ("DELETE", &["tagging"], "DeleteObjectTagging"),
    ("DELETE", &[], "DeleteObject"),
    ("POST", &["uploads"], "CreateMultipartUpload"),
    ("POST", &["uploadId"], "CompleteMultipartUpload"),
    ("POST", &["restore"], "RestoreObject"),
    ("POST", &["select"], "SelectObjectContent"),
    ("POST", &[], "PostObject"),
];

const ROUTE_53: [route::Route; 52] = [
    ("GET", "hostedzone", "ListHostedZones"),
    ("POST", "hostedzone", "CreateHostedZone"),
    ("GET", "hostedzone/*", "GetHostedZone"),
    ("POST", "hostedzone/*", "UpdateHostedZoneComment"),
    ("DELETE", "hostedzone/*", "DeleteHostedZone"),
    ("GET", "hostedzone/*/rrset", "ListResourceRecordSets"),
    ("POST", "hostedzone/*/rrset", "ChangeResourceRecordSets"),
    ("POST", "hostedzone/*/associatevpc", "AssociateVPCWithHostedZone"),
    ("POST", "hostedzone/*/disassociatevpc", "DisassociateVPCFromHostedZone"),
    ("GET", "hostedzone/*/authorizevpcassociation", "ListVPCAssociationAuthorizations"),
    ("POST", "hostedzone/*/authorizevpcassociation", "CreateVPCAssociationAuthorization"),
    ("POST", "hostedzone/*/deauthorizevpcassociation", "DeleteVPCAssociationAuthorization"),
    ("GET", "hostedzone/*/dnssec", "GetDNSSEC"),
    ("POST", "hostedzone/*/enable-dnssec", "EnableHostedZoneDNSSEC"),
    ("POST", "hostedzone/*/disable-dnssec", "DisableHostedZoneDNSSEC"),
    ("GET", "hostedzonecount", "GetHostedZoneCount"),
    ("GET", "hostedzonesbyname", "ListHostedZonesByName"),
    ("GET", "hostedzonesbyvpc", "ListHostedZonesByVPC"),
    ("GET", "hostedzonelimit/*/*", "GetHostedZoneLimit"),
    ("GET", "accountlimit/*", "GetAccountLimit"),
    ("GET", "change/*", "GetChange"),
    ("GET", "checkeripranges", "GetCheckerIpRanges"),
    ("GET", "geolocation", "GetGeoLocation"),
    ("GET", "geolocations", "ListGeoLocations"),
    ("GET", "testdnsanswer", "TestDNSAnswer"),
    ("GET", "healthcheck", "ListHealthChecks"),
    ("POST", "healthcheck", "CreateHealthCheck"),
    ("GET", "healthcheck/*", "GetHealthCheck"),
    ("POST", "healthcheck/*", "UpdateHealthCheck"),
    ("DELETE", "healthcheck/*", "DeleteHealthCheck"),
    ("GET", "healthcheck/*/status", "GetHealthCheckStatus"),
    ("GET", "healthcheck/*/lastfailurereason", "GetHealthCheckLastFailureReason"),
    ("GET", "healthcheckcount", "GetHealthCheckCount"),
    ("POST", "tags/*", "ListTagsForResources"),
    ("GET", "tags/*/*", "ListTagsForResource"),
    ("POST", "tags/*/*", "ChangeTagsForResource"),
    ("GET", "delegationset", "ListReusableDelegationSets"),
    ("POST", "delegationset", "CreateReusableDelegationSet"),
    ("GET", "delegationset/*", "GetReusableDelegationSet"),
    ("DELETE", "delegationset/*", "DeleteReusableDelegationSet"),
    ("GET", "queryloggingconfig", "ListQueryLoggingConfigs"),
    ("POST", "queryloggingconfig", "CreateQueryLoggingConfig"),
    ("GET", "queryloggingconfig/*", "GetQueryLoggingConfig"),
    ("DELETE", "queryloggingconfig/*", "DeleteQueryLoggingConfig"),
    ("POST", "keysigningkey", "CreateKeySigningKey"),
    ("DELETE", "keysigningkey/*/*", "DeleteKeySigningKey"),
    ("POST", "keysigningkey/*/*/activate", "ActivateKeySigningKey"),
    ("POST", "keysigningkey/*/*/deactivate", "DeactivateKeySigningKey"),
    ("GET", "cidrcollection", "ListCidrCollections"),
    ("POST", "cidrcollection", "CreateCidrCollection"),
    ("POST", "cidrcollection/*", "ChangeCidrCollection"),
    ("DELETE", "cidrcollection/*", "DeleteCidrCollection"),
];

const EKS: [route::Route; 46] = [
    ("GET", "clusters", "ListClusters"),
    ("POST", "clusters", "CreateCluster"),
    ("GET", "clusters/*", "DescribeCluster"),
    ("DELETE", "clusters/*", "DeleteCluster"),
    ("POST", "clusters/*/update-config", "UpdateClusterConfig"),
    ("GET", "clusters/*/updates", "ListUpdates"),
    ("POST", "clusters/*/updates", "UpdateClusterVersion"),
    ("GET", "clusters/*/updates/*", "DescribeUpdate"),
    ("POST", "clusters/*/encryption-config/associate", "AssociateEncryptionConfig"),
    ("GET", "clusters/*/node-groups", "ListNodegroups"),
    ("POST", "clusters/*/node-groups", "CreateNodegroup"),
    ("GET", "clusters/*/node-groups/*", "DescribeNodegroup"),
    ("DELETE", "clusters/*/node-groups/*", "DeleteNodegroup"),
    ("POST", "clusters/*/node-groups/*/update-config", "UpdateNodegroupConfig"),
    ("POST", "clusters/*/node-groups/*/update-version", "UpdateNodegroupVersion"),
    ("GET", "clusters/*/fargate-profiles", "ListFargateProfiles"),
    ("POST", "clusters/*/fargate-profiles", "CreateFargateProfile"),
    ("GET", "clusters/*/fargate-profiles/*", "DescribeFargateProfile"),
    ("DELETE", "clusters/*/fargate-profiles/*", "DeleteFargateProfile"),
    ("GET", "clusters/*/addons", "ListAddons"),
    ("POST", "clusters/*/addons", "CreateAddon"),
    ("GET", "clusters/*/addons/*", "DescribeAddon"),
    ("DELETE", "clusters/*/addons/*", "DeleteAddon"),
    ("POST", "clusters/*/addons/*/update", "UpdateAddon"),
    ("GET", "addons/supported-versions", "DescribeAddonVersions"),
    ("GET", "addons/configuration-schemas", "DescribeAddonConfiguration"),
    ("GET", "clusters/*/access-entries", "ListAccessEntries"),
    ("POST", "clusters/*/access-entries", "CreateAccessEntry"),
    ("GET", "clusters/*/access-entries/*", "DescribeAccessEntry"),
    ("POST", "clusters/*/access-entries/*", "UpdateAccessEntry"),
    ("DELETE", "clusters/*/access-entries/*", "DeleteAccessEntry"),
    ("GET", "clusters/*/access-entries/*/access-policies", "ListAssociatedAccessPolicies"),
    ("POST", "clusters/*/access-entries/*/access-policies", "AssociateAccessPolicy"),
    ("DELETE", "clusters/*/access-entries/*/access-policies/*", "DisassociateAccessPolicy"),
    ("GET", "access-policies", "ListAccessPolicies"),
    ("GET", "clusters/*/pod-identity-associations", "ListPodIdentityAssociations"),
    ("POST", "clusters/*/pod-identity-associations", "CreatePodIdentityAssociation"),
    ("GET", "clusters/*/pod-identity-associations/*", "DescribePodIdentityAssociation"),
    ("POST", "clusters/*/pod-identity-associations/*", "UpdatePodIdentityAssociation"),
    ("DELETE", "clusters/*/pod-identity-associations/*", "DeletePodIdentityAssociation"),
    ("GET", "clusters/*/identity-provider-configs", "ListIdentityProviderConfigs"),
    ("POST", "clusters/*/identity-provider-configs/describe", "DescribeIdentityProviderConfig"),
    ("POST", "clusters/*/identity-provider-configs/associate", "AssociateIdentityProviderConfig"),
    ("GET", "tags/*", "ListTagsForResource"),
    ("POST", "tags/*", "TagResource"),
    ("DELETE", "tags/*", "UntagResource"),
];

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::dialect::tests::request;

    fn of(service: &str, method: &Method, host: &str, target: &str) -> &'static str {
        let (uri, headers) = request(target, &[]);
        action(service, &Head { method, uri: &uri, headers: &headers }, host).unwrap_or_default()
    }

    #[test]
    fn route_53_and_eks_are_read_by_their_paths() {
        let route_53 = |method: Method, path| of("route53", &method, "route53.amazonaws.com", path);
        assert_eq!(route_53(Method::POST, "/2013-04-01/hostedzone/Z/rrset/"), "ChangeResourceRecordSets");
        assert_eq!(route_53(Method::GET, "/2013-04-01/hostedzone/Z/rrset?maxitems=300"), "ListResourceRecordSets");
        assert_eq!(route_53(Method::GET, "/2013-04-01/change/C1"), "GetChange");
        assert_eq!(route_53(Method::GET, "/nothing/known"), "");
        assert_eq!(
            of("eks", &Method::GET, "eks.eu-west-1.amazonaws.com", "/clusters/c/node-groups/n"),
            "DescribeNodegroup"
        );
        assert_eq!(of("lambda", &Method::GET, "", "/functions"), "");
    }

    #[test]
    fn s3_is_read_by_bucket_key_and_query() {
        let (path_style, in_host) = ("s3.eu-west-1.amazonaws.com", "b.s3.eu-west-1.amazonaws.com");
        for (method, host, target, expected) in [
            (Method::GET, path_style, "/", "ListBuckets"),
            (Method::GET, path_style, "/b", "ListObjects"),
            (Method::GET, path_style, "/b/?list-type=2&prefix=x", "ListObjectsV2"),
            (Method::GET, in_host, "/?list-type=2", "ListObjectsV2"),
            (Method::GET, path_style, "/b//..%2Fk", "GetObject"),
            (Method::GET, in_host, "/k", "GetObject"),
            (Method::HEAD, in_host, "/k", "HeadObject"),
            (Method::HEAD, path_style, "/b", "HeadBucket"),
            (Method::PUT, in_host, "/k?partNumber=1&uploadId=u", "UploadPart"),
            (Method::PUT, in_host, "/k", "PutObject"),
            (Method::PUT, path_style, "/b", "CreateBucket"),
            (Method::POST, path_style, "/b?delete", "DeleteObjects"),
            (Method::POST, in_host, "/k?uploads", "CreateMultipartUpload"),
            (Method::PATCH, in_host, "/k", ""),
        ] {
            assert_eq!(of("s3", &method, host, target), expected, "{method} {host} {target}");
        }
    }
}
