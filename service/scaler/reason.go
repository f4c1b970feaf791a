package scaler

import "github.com/loadplane/loadplane/store"

// Reasons why a request of an autoscaler is refused.
const (
	// ReasonUnknownKey: the trigger's metadata has a key that says nothing here.
	ReasonUnknownKey store.Reason = "unknown_key"
	// ReasonMissingKey: the trigger's metadata lacks a key that is needed.
	ReasonMissingKey store.Reason = "missing_key"
	// ReasonBadValue: a value of the trigger's metadata is not allowed.
	ReasonBadValue store.Reason = "bad_value"
	// ReasonOtherMetric: the request names another metric than its metadata.
	ReasonOtherMetric store.Reason = "other_metric"
	// ReasonNoPool: no worker that is listed serves the model in the role.
	ReasonNoPool store.Reason = "no_pool"
	// ReasonViewWarming: the plane started and did not hear every worker yet.
	ReasonViewWarming store.Reason = "view_warming"
	// ReasonLowCoverage: too few workers of the pool are fresh.
	ReasonLowCoverage store.Reason = "low_coverage"
	// ReasonValueUnknown: a fresh worker of the pool does not tell what the
	// metric is made of.
	ReasonValueUnknown store.Reason = "value_unknown"
	// ReasonTooManyScalers: there are all the streams that the plane takes from
	// autoscalers.
	ReasonTooManyScalers store.Reason = "too_many_scalers"
)
