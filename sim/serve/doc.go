// Package serve answers requests for completions in the place of a simulated
// engine, in the shapes of OpenAI's API that SGLang, vLLM and others speak. A
// request waits and runs in a rank of the engine's queueing model, and ends
// after the time that this takes. The tokens say nothing.
package serve
