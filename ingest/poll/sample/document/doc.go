// Package document reads pages of JSON: the loads of SGLang and the iterations
// of TensorRT-LLM, in the shapes that different releases gave them.
package document
