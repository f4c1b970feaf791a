// The numbers of ranks and workers: names as on the wire, and how they show.

import type { Aggregate, RankLoad } from "./gen/loadplane/v1/common_pb";
import { compact, count, percent, ratio, seconds, type Num } from "./format";

/** Field is one number of a T. */
export interface Field<T> {
  /** Name on the wire and in JSON. */
  readonly name: string;
  /** Name for people. */
  readonly title: string;
  /** Short name for people, for heads of columns. */
  readonly short: string;
  readonly get: (of: T) => Num;
  readonly show: (v: Num) => string;
  /** Largest value of the scale where that is fixed. */
  readonly top?: number;
}

/** rankFields are the numbers of a rank, in the order in which they show. */
export const rankFields: readonly Field<RankLoad>[] = [
  { name: "token_usage", title: "Token usage", short: "usage", get: (r) => r.tokenUsage, show: percent, top: 1 },
  { name: "num_running_reqs", title: "Running requests", short: "running", get: (r) => r.numRunningReqs, show: count },
  { name: "num_waiting_reqs", title: "Waiting requests", short: "waiting", get: (r) => r.numWaitingReqs, show: count },
  { name: "num_used_tokens", title: "Used tokens", short: "used", get: (r) => r.numUsedTokens, show: compact },
  { name: "max_total_num_tokens", title: "Token capacity", short: "capacity", get: (r) => r.maxTotalNumTokens, show: compact },
  { name: "num_total_tokens", title: "Token demand", short: "demand", get: (r) => r.numTotalTokens, show: compact },
  { name: "num_waiting_uncached_tokens", title: "Waiting uncached tokens", short: "uncached", get: (r) => r.numWaitingUncachedTokens, show: compact },
  { name: "max_running_requests", title: "Most running requests", short: "max run", get: (r) => r.maxRunningRequests, show: count },
  { name: "gen_throughput", title: "Generated tokens per second", short: "gen/s", get: (r) => r.genThroughput, show: compact },
  { name: "prefill_throughput", title: "Prefill tokens per busy second", short: "prefill/s", get: (r) => r.prefillThroughput, show: compact },
  { name: "prefill_throughput_wall", title: "Prefill tokens per second", short: "prefill wall/s", get: (r) => r.prefillThroughputWall, show: compact },
  { name: "cache_hit_rate", title: "Cache hit rate", short: "cache hits", get: (r) => r.cacheHitRate, show: percent, top: 1 },
  { name: "utilization", title: "Utilization", short: "util", get: (r) => r.utilization, show: percent, top: 1 },
  { name: "prefill_bootstrap_reqs", title: "Prefill bootstrap queue", short: "bootstrap", get: (r) => r.prefillBootstrapReqs, show: count },
  { name: "prefill_inflight_reqs", title: "Prefill in-flight queue", short: "in flight", get: (r) => r.prefillInflightReqs, show: count },
  { name: "decode_prealloc_reqs", title: "Decode prealloc queue", short: "prealloc", get: (r) => r.decodePreallocReqs, show: count },
  { name: "decode_transfer_reqs", title: "Decode transfer queue", short: "transfer", get: (r) => r.decodeTransferReqs, show: count },
  { name: "decode_retracted_reqs", title: "Decode retracted", short: "retracted", get: (r) => r.decodeRetractedReqs, show: count },
];

/** aggregateFields are the numbers of a worker or of a pool. */
export const aggregateFields: readonly Field<Aggregate>[] = [
  { name: "weighted_token_usage", title: "Token usage", short: "usage", get: (a) => a.weightedTokenUsage, show: percent, top: 1 },
  { name: "max_rank_token_usage", title: "Fullest rank", short: "max rank", get: (a) => a.maxRankTokenUsage, show: percent, top: 1 },
  { name: "num_running_reqs", title: "Running requests", short: "running", get: (a) => a.numRunningReqs, show: count },
  { name: "num_waiting_reqs", title: "Waiting requests", short: "waiting", get: (a) => a.numWaitingReqs, show: count },
  { name: "total_requests", title: "All requests", short: "requests", get: (a) => a.totalRequests, show: count },
  { name: "num_used_tokens", title: "Used tokens", short: "used", get: (a) => a.numUsedTokens, show: compact },
  { name: "max_total_num_tokens", title: "Token capacity", short: "capacity", get: (a) => a.maxTotalNumTokens, show: compact },
  { name: "num_total_tokens", title: "Token demand", short: "demand", get: (a) => a.numTotalTokens, show: compact },
  { name: "free_tokens", title: "Free tokens", short: "free", get: (a) => a.freeTokens, show: compact },
  { name: "num_waiting_uncached_tokens", title: "Waiting uncached tokens", short: "uncached", get: (a) => a.numWaitingUncachedTokens, show: compact },
  { name: "max_running_requests", title: "Most running requests", short: "max run", get: (a) => a.maxRunningRequests, show: count },
  { name: "available_slots", title: "Free request slots", short: "slots", get: (a) => a.availableSlots, show: count },
  { name: "request_utilization", title: "Request slots in use", short: "slots used", get: (a) => a.requestUtilization, show: percent, top: 1 },
  { name: "gen_throughput", title: "Generated tokens/s", short: "gen/s", get: (a) => a.genThroughput, show: compact },
  { name: "prefill_throughput", title: "Prefill tokens/s", short: "prefill/s", get: (a) => a.prefillThroughput, show: compact },
  { name: "queue_pressure", title: "Queue pressure", short: "pressure", get: (a) => a.queuePressure, show: seconds },
  { name: "prefill_wait_seconds", title: "Prefill wait", short: "prefill wait", get: (a) => a.prefillWaitSeconds, show: seconds },
  { name: "token_usage_imbalance", title: "Imbalance of token usage", short: "imbalance", get: (a) => a.tokenUsageImbalance, show: ratio },
  { name: "request_imbalance", title: "Imbalance of requests", short: "req imbalance", get: (a) => a.requestImbalance, show: ratio },
];

/** fieldOf returns the field of a list that has a name. */
export function fieldOf<T>(fields: readonly Field<T>[], name: string): Field<T> {
  const found = fields.find((f) => f.name === name);
  if (!found) throw new Error(`no field is named ${name}`);
  return found;
}
