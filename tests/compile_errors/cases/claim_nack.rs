// warning: use `fail`, or `release` if the entry should be due again at once

pub async fn f(claim: fleeting::Claim<String, u64>) -> bool {
    claim.nack().await
}
