"""The sentences of a recipe as tokens, and batches of them for the classifier."""

from softnce.lab.data.batches import EvaluationBatches, Loader
from softnce.lab.data.image_loader import FeatureRows
from softnce.lab.data.module import TrainingData
from softnce.lab.data.sentences import Sentences, open_sentences
from softnce.lab.models.text import tokenise
from softnce.lab.recipes.recipe import TextRecipe


class SentenceData(TrainingData):
    """Training and evaluation loaders of a recipe: evaluation is on the split that chooses the epoch."""

    def __init__(self, recipe: TextRecipe, world: int = 1) -> None:
        super().__init__(recipe, world)
        self.train = open_sentences(recipe.data, "train")
        self.validation = open_sentences(recipe.data, "validation")
        if recipe.data.keeps_test_apart:
            open_sentences(recipe.data, "test")  # only needed at the end, but what is wrong with it is said now
        self.labels, self.classes = self.train.labels, self.train.classes
        self.samples, self.drop_last = len(self.labels), recipe.data.drop_last

    def train_dataloader(self) -> Loader:
        tokens = tokenise(self.recipe.model, self.train.texts, self.recipe.data.max_tokens)
        return Loader(FeatureRows(tokens, self.labels), self.batches(self.rank))

    def val_dataloader(self) -> Loader:
        return evaluation_loader(self.recipe, self.validation, self.rank, self.world)


def evaluation_loader(recipe: TextRecipe, sentences: Sentences, rank: int = 0, world: int = 1) -> Loader:
    tokens = tokenise(recipe.model, sentences.texts, recipe.data.max_tokens)
    batches = EvaluationBatches(len(tokens), recipe.compute.eval_batch, rank, world)
    return Loader(FeatureRows(tokens, sentences.labels), batches)
