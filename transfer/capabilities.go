package transfer

// Capabilities are the optional abilities of a Path. A nil field means that the path does not have
// the ability.
type Capabilities struct {
	Borrow    Borrower
	Lend      Lender
	Rescue    Rescuer
	Pipelined PipelinedFetcher
	Prepare   Preparer
	Prompt    Prompter
}

// SinkCapabilities are the optional abilities of a Sink. A nil field means that the sink does not
// have the ability, and paths use Place and Done alone.
type SinkCapabilities struct {
	Batch   Batcher
	Forward Forwarder
	Wait    Waiter
}
