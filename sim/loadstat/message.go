package loadstat

import (
	"bytes"
	"encoding/binary"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/sim/queue"
	"github.com/vmihailenco/msgpack/v5"
)

// Topic is the first frame of every message.
const Topic = "load"

// tag is the first element of the array.
const tag = "LoadStat"

// payload is the array of one rank: the elements of SGLang 0.5.19 and the five
// that sglang#38139 appended.
func payload(r *pb.RankLoad, running int64, c queue.Counters) []byte {
	var b bytes.Buffer
	e := msgpack.NewEncoder(&b)
	elements := []int64{
		running, r.NumWaitingReqs, r.NumUsedTokens, r.MaxTotalNumTokens, int64(r.DpRank),
		r.NumWaitingUncachedTokens, r.NumTotalTokens, r.MaxRunningRequests,
		c.PromptTokens - c.CachedTokens, c.PrefillBusy.Microseconds(),
	}
	_ = e.EncodeArrayLen(1 + len(elements)) // a buffer takes all
	_ = e.EncodeString(tag)
	for _, v := range elements {
		_ = e.EncodeInt(v)
	}
	return b.Bytes()
}

// message is what goes out for a payload: topic, sequence, payload.
func message(sequence int64, payload []byte) []byte {
	b := appendFrame(nil, flagMore, []byte(Topic))
	b = appendFrame(b, flagMore, binary.BigEndian.AppendUint64(nil, uint64(sequence)))
	return appendFrame(b, 0, payload)
}
